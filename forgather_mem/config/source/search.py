"""Finds the file that a template name refers to.

A name is a path relative to one of the folders of a search path, with "/" between its parts. The first folder that has
it wins; the templates of this library come last. Whatever the name, the file that is read is a regular file inside one
of these folders, with links resolved.
"""

from __future__ import annotations

import functools
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forgather_mem.config.limits import DEFAULT_LIMITS, Limits
from forgather_mem.errors import TemplateError, missing, nearest, ours

SUFFIXES = (".yaml", ".yml", ".jinja")
_SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages"))


@dataclass(frozen=True, slots=True)
class _Most:
    """How much of a search path is listed, since a folder on it may be somebody's home: templates, with ten times as
    many entries of folders; folders in each other, as every part of a file's name is looked at; bytes in which a
    template's first comment is looked for."""

    templates: int = 5_000
    folders_deep: int = 20
    comment_bytes: int = 4_000


_MOST = _Most()


@dataclass(frozen=True, slots=True)
class Found:
    """A template's file.

    Attributes:
        name: The name, without "./" and double slashes.
        file: Its path.
        stamp: Changes when the file does.
    """

    name: str
    file: Path
    stamp: tuple[int, int, int]

    def is_current(self) -> bool:
        """Whether the file is unchanged, which is known sooner than which file a name means."""
        with missing(OSError):
            return _stamp(os.stat(self.file)) == self.stamp
        return False


@functools.cache  # while the process runs, it stays where it is
def library() -> Path:
    """The folder of the templates that come with this library.

    In an installed package it is beside the code, in a checkout one level up.
    """
    package = Path(__file__).resolve().parents[2]
    beside = package / "templates"
    return beside if beside.is_dir() else package.parent / "templates"


class Searcher:
    """Finds templates in the folders of a search path, then in the library.

    Args:
        searchpath: One or several folders; missing ones count as empty.
        budgets: Limits the size of a file.
    """

    def __init__(
        self, searchpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = ".", budgets: Limits | None = None
    ) -> None:
        given = [searchpath] if isinstance(searchpath, str | os.PathLike) else searchpath
        self.folders = tuple(Path(os.fspath(folder)).expanduser() for folder in (*given, library()))
        self._roots = [os.path.realpath(folder) for folder in self.folders]
        self._budgets = budgets or DEFAULT_LIMITS

    def find(self, name: str) -> Found | None:
        """The file of a template, or None if no folder has it.

        Raises:
            TemplateError: if the name is not a relative path, or its file must not be read.
        """
        parts = self._parts(name)
        for folder in self.folders:
            file = folder.joinpath(*parts)
            try:
                status = os.stat(file)
            except ours(OSError):
                continue
            if not stat.S_ISDIR(status.st_mode):
                self._check(name, file, status)
                return Found("/".join(parts), file, _stamp(status))
        return None

    def read(self, found: Found) -> str:
        """The text of a template's file.

        Raises:
            TemplateError: if it can't be read, is too large, or is not UTF-8.
        """
        try:
            data = self._head(found, self._budgets.source_bytes + 1)
        except ours(OSError) as error:
            raise TemplateError(f"can't read {found.file}: {error.strerror}", template=found.name) from error
        if len(data) > self._budgets.source_bytes:
            limit = f"{self._budgets.source_bytes:,} bytes; that is the limit of one load"
            raise TemplateError(f"{found.name!r} has more than {limit}")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise TemplateError(
                f"byte 0x{data[error.start]:02x} is not UTF-8", template=found.name, line=line, hint="save it as UTF-8"
            ) from error

    def names(self) -> dict[str, str]:
        """All templates of the search path, at most some thousands: the name to load each by, and its first comment
        line without the "#".

        What can't be loaded, as a link that leads out of the search path, is not among them, and is not opened.
        """
        seen: dict[str, str] = {}
        for folder in self.folders:
            for name in _walk(folder):
                if name not in seen and len(seen) < _MOST.templates:
                    with missing(TemplateError, OSError):
                        if found := self.find(name):
                            seen[name] = _first_comment(self._head(found, _MOST.comment_bytes))
        return dict(sorted(seen.items()))

    def not_found(self, name: str) -> TemplateError:
        """The error about a template that no folder has; the caller raises it."""
        return TemplateError(f"template {name!r} not found", hint=self.hint(name))

    def hint(self, name: str, others: Sequence[str] = ()) -> str:
        """What to do about a name that no folder has."""
        known = [*others]
        for folder in self.folders:
            known += itertools.islice(_walk(folder), _MOST.templates)
        folders = ", ".join(f"{one}{'' if os.path.isdir(one) else ' (does not exist)'}" for one in self.folders[:-1])
        looked = f"looked in {folders or 'no folder'}, and in the library's own templates"
        meant = {os.path.basename(one): one for one in known} | {one: one for one in known}
        near = nearest(name, meant)
        return f"did you mean {meant[near]!r}? ({looked})" if near else looked

    def _head(self, found: Found, num_bytes: int) -> bytes:
        # Non-blocking: since it was found, the file may have become a pipe.
        with open(os.open(found.file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            self._check(found.name, found.file, os.fstat(file.fileno()))
            return file.read(num_bytes)

    def _parts(self, name: str) -> list[str]:
        parts = [part for part in name.replace(os.sep, "/").split("/") if part not in ("", ".")]
        problem = None
        if os.path.isabs(name) or os.path.splitdrive(name)[0]:
            problem = "is an absolute path"
        elif ".." in parts:
            problem = "has '..' in it"
        elif not parts or not name.isprintable() or "\\" in name:
            problem = "is not a file name"
        if problem:
            folder, file = os.path.split(os.path.normpath(name))
            raise TemplateError(
                f"the name {name[:100]!r} {problem}: a template is named relative to a folder of the search path",
                hint=f"searchpath {folder!r}, name {file!r} would find it" if os.path.isfile(name) else None,
            )
        return parts

    def _check(self, name: str, file: Path, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise TemplateError(f"{name!r} is not a regular file: {file}")
        real = os.path.realpath(file)
        if not any(os.path.commonpath((real, root)) == root for root in self._roots):
            hint = f"add {os.path.dirname(real)} to the search path"
            raise TemplateError(f"{name!r} is a link to {real}, which is outside the search path", hint=hint)


def _walk(folder: Path) -> Iterator[str]:
    """Names of the templates below a folder, sorted by name."""
    left = 10 * _MOST.templates  # directory entries; the folder may be a home directory
    deepest = os.fspath(folder).count(os.sep) + _MOST.folders_deep
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
        if where.count(os.sep) >= deepest:
            folders.clear()
        left -= len(folders) + len(files)
        if left < 0:
            return
        for name in sorted(files):
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(where, name).relative_to(folder).as_posix()


def _first_comment(head: bytes) -> str:
    lines = head.decode("utf-8", "replace").splitlines()
    return next(filter(None, (line.strip(" -=#") for line in map(str.strip, lines) if line.startswith("#"))), "")


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino
