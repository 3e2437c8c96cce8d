"""Loads template files as Jinja source, with the sub-templates that they define."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forgather_mem.config.limits import Limits
from forgather_mem.config.source.rendered import RESERVED, STRING, SourceLocation
from forgather_mem.config.source.search import Found, Searcher
from forgather_mem.config.source.syntax import Part, is_plain, plain_newlines, split, to_jinja

_REFUSED = re.compile(rf"[{''.join(RESERVED)}]|^(?:<{{7}}|>{{7}})(?: .*)?$", re.MULTILINE)


class StrangersTemplate(Exception):
    """A template is needed that may not be rendered in this process."""


@dataclass(slots=True, eq=False)
class Source:
    """One template: a file's head or a sub-template.

    Attributes:
        key: Unique among the templates of a search path.
        name: Its name in templates.
        file_name: Name of the file's head, used in locations.
        file: The file; None for a string.
        first_line: Line of the file on which it begins.
        lines: Its lines, as written.
        parts: The sub-templates of its file by name; shared between them.
        num_chars: Length of its text.
    """

    key: str
    name: str
    file_name: str
    file: Path | None
    first_line: int
    lines: list[str]
    parts: dict[str, Source] = field(default_factory=dict, repr=False)
    num_chars: int = 0

    def jinja(self) -> str:
        """Its text as Jinja reads it."""
        text = "\n".join(self.lines)
        return text if is_plain(text) else to_jinja(text)

    def place(self, line: int, column: int | None = None, chain: Sequence[str] = (), level: int = 0) -> SourceLocation:
        """The location of a line, 1-based; the column defaults to its first visible character."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else None
        if column is None:
            column = 1 + (len(text) - len(text.lstrip()) if text and text.strip() else 0)
        return SourceLocation(self.file_name, self.first_line + line - 1, column, text, ", ".join(chain) or None, level)


class Sources:
    """Loads templates; each file is read once until it changes.

    Args:
        searcher: Finds the files.
        budgets: Limits the text that one load may read.
        is_own: Whether a file may be rendered in this process.
    """

    def __init__(self, searcher: Searcher, budgets: Limits, is_own: Callable[[Path], bool] = lambda file: True) -> None:
        self.searcher = searcher
        self._budgets = budgets
        self._is_own = is_own
        self._loaded: dict[str, tuple[Found, Source]] = {}

    def load(self, name: str) -> Source | None:
        """The head of a file; None when there is no such file.

        Raises:
            TemplateError: if the file can't or must not be read.
            StrangersTemplate: if it may not be rendered here.
        """
        known = self._loaded.get(name)
        if known is not None and known[0].is_current():
            return known[1]
        found = self.searcher.find(name)
        if found is None:
            return None
        if not self._is_own(found.file):
            raise StrangersTemplate(found.name)
        head = self.from_text(self.searcher.read(found), found.name, found.file)
        self._loaded[name] = (found, head)
        return head

    def from_text(self, text: str, name: str = STRING, file: Path | None = None) -> Source:
        """The head of a text. A string has no sub-templates: it has no file that could be extended or included."""
        if found := _REFUSED.search(text):
            at = found.start()
            place = SourceLocation(name, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
            if found[0] in RESERVED:
                raise place.error(f"the character U+{ord(found[0]):04X} is reserved")
            hint = "keep one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>"
            raise place.error("a merge conflict that nobody has resolved", hint=hint)
        text = text.removeprefix("\ufeff")
        most = self._budgets.nodes
        if text.count("\n") > most:
            raise SourceLocation(name, most).error(f"a template has at most {most:,} lines")
        parts: dict[str, Source] = {}
        pieces = split(text) if file is not None else [Part(None, 1, plain_newlines(text))]
        head, *others = (_source(part, name, file, parts) for part in pieces)
        for source in others:
            if source.name in parts:
                raise source.place(0).error(f"the file has another sub-template {source.name!r}")
            parts[source.name] = source
        return head


def _source(part: Part, file_name: str, file: Path | None, parts: dict[str, Source]) -> Source:
    key, lines = file_name if part.name is None else f"{file_name}#{part.name}", part.text.split("\n")
    return Source(key, part.name or file_name, file_name, file, part.first_line, lines, parts, len(part.text))
