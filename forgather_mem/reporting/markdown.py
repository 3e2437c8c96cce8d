"""Markdown: the report for an issue or a chat, without the folders of its machine, and texts as nothing but texts."""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import replace

from forgather_mem.errors import escape_controls, shown
from forgather_mem.reporting.text import report_text, with_texts
from forgather_mem.telemetry.redaction import redacted
from forgather_mem.telemetry.report import RunReport, Training

_WIDTH = 80
_MAX_LINES_OF_SETTINGS = 20
_IS_OFF = ("False", "None", "no", "")
# Behind a letter, a digit or ":" it is a part of a relative path, of a share or of an address
_PATH = re.compile(r"(?<![\w.:/~-])~?/[^\s'\"`,;:()<>\[\]]+")
_PACKAGE = re.compile(r".*/(?:site|dist)-packages/(?=.)|.*/(?=python3[\d.]*/.)")
# Backslashes stop marks, but not what GitHub and others make of names, numbers and addresses
_LINKED = re.compile(r"[@$]|#\w|://|www\.|GH-\d|mailto:|xmpp:", re.I)
_MARK = re.compile(r"[\\`*_<>|\[\]~&]")


def report_markdown(report: RunReport) -> str:
    """The report in one block of fewer than 60 lines, without a newline at its end.

    Of absolute paths the file name is left, of files of a package the path within it. The lines of code, names of
    classes and messages of errors that the report shows stay, without what looks like a secret: whoever has written
    the report may have left it in.
    """
    run = replace(report.run, folder=None, event_folder=None)  # no commands that work on this machine alone
    folders = _folders(report.run)
    told = with_texts(replace(report, run=run), lambda text: redacted(escape_controls(without_folders(text, folders))))
    versions = ", ".join(f"{name} {version}" for name, version in sorted(told.run.versions.items()))
    lines = [report_text(told), *textwrap.wrap(versions, _WIDTH), *_settings(told.run)]
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", "\n".join(lines)))])
    return shown("\n".join([f"{fence}text", *lines, fence]))


def markdown_text(text: str) -> str:
    r"""The text in one line, in which nothing links, mentions or marks anything.

    >>> markdown_text("a_b [c](https://d.example) for @me, #1")
    'a\\_b `[c](https://d.example)` for `@me,` `#1`'
    """
    words = [_in_code(word) if _LINKED.search(word) else _MARK.sub(r"\\\g<0>", word) for word in text.split()]
    return " ".join(words)


def _in_code(word: str) -> str:
    """A word as code, in which Markdown has no meaning but for a bar, which ends the cell of a table."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", word)), default=0))
    edge = " " if "`" in word[:1] + word[-1:] else ""
    return f"{ticks}{edge}{word}{edge}{ticks}".replace("|", " \\|")


def without_folders(text: str, folders: tuple[str, ...] = ()) -> str:
    """The text, with file names in place of absolute paths; `folders` are known ones, which may contain spaces.

    >>> without_folders("/home/ann/venv/lib/python3.11/site-packages/trl/trainer.py:41")
    'trl/trainer.py:41'
    >>> without_folders("can't read /home/ann/my data/rows.json; /dev/shm is full", ("/home/ann/my data",))
    "can't read rows.json; /dev/shm is full"
    """
    for folder in folders:
        text = text.replace(f"{folder}/", "/")
    return _PATH.sub(_shorter, text)


def _shorter(match: re.Match[str]) -> str:
    path = match[0]
    if path.startswith(("/dev/", "/proc/", "/sys/")):
        return path
    inside = _PACKAGE.sub("", path, count=1)
    return inside if inside != path else os.path.basename(path.rstrip("/"))


def _folders(run: Training) -> tuple[str, ...]:
    """The longest first, so that none is left in part."""
    places = [os.path.dirname(run.script), run.folder or "", run.event_folder or "", os.path.expanduser("~")]
    found = {place for place in (*places, os.getcwd()) if place.startswith("/") and place != "/"}
    return tuple(sorted(found, key=len, reverse=True))


def _settings(run: Training) -> list[str]:
    """The settings that decide how much memory it takes; without those that are off."""
    named = {name.removeprefix("arguments."): value for name, value in run.settings.items() if value not in _IS_OFF}
    text = ", ".join(f"{name}={value}" for name, value in named.items())
    return textwrap.wrap(text, _WIDTH, max_lines=_MAX_LINES_OF_SETTINGS, placeholder=" ...", break_on_hyphens=False)
