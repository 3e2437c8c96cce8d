"""Distinguishes the user's code from libraries', and finds the line that adds to a holder."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType

_OURS = str(Path(__file__).parent.parent) + "/"
_INSTALLED = ("/site-packages/", "/dist-packages/", "<frozen")
_GROWS = (
    r"\b{name}\b(?:\[[^\]]*\]|\.\w+)*\.(?:append|appendleft|extend|add|insert|setdefault|put|put_nowait|update)\s*\(",
    r"\b{name}\b(?:\[[^\]]*\])*\[[^\]]*\]\s*=[^=]",
    r"\b(?:heappush|heappushpop|insort(?:_left|_right)?)\(\s*(?:\w+\.)*{name}\b",
    r"\b{name}\b\s*(?:\+=|\|=)",
    r"\b{name}\b\s*=.*\b{name}\b",
    r"\b{name}\b(?:\[[^\]]*\])*\s*=.*\b(?:cat|stack|concatenate|append|vstack|hstack)\s*\(",
)
_HEAD = re.compile(r"^(?:async )?(?:def|class)\b.*?(?:\)|\w)(?:\s*->[^:]*)?:(?=\s)")
_MOST_LINES = 20_000


@functools.cache
def is_user_file(name: str) -> bool:
    """Whether this file is the user's: neither Python's, nor installed, nor ours.

    >>> is_user_file(os.__file__), is_user_file(__file__), is_user_file("/home/me/train.py")
    (False, False, True)
    """
    if not name or name.startswith((_OURS, *_library_folders())):
        return False
    return not any(part in name for part in _INSTALLED) and not (name.startswith("<") and "ipython" not in name)


def is_our_class(cls: type) -> bool:
    """Whether this class belongs to this library."""
    module = getattr(cls, "__module__", "")
    return isinstance(module, str) and (module == "forgather_mem" or module.startswith("forgather_mem."))


def is_user_module(module: object) -> bool:
    """Whether this module is the user's, `__main__` too."""
    if not isinstance(module, ModuleType):
        return False
    name = module.__name__
    if name == "__main__":
        return True
    # Some modules, e.g. torch.ops, have file names that don't exist: then the package decides
    package = sys.modules.get(name.partition(".")[0]) if isinstance(name, str) else None
    return all(is_user_file(getattr(part, "__file__", None) or "") for part in {module, package or module})


def is_user_class(cls: type) -> bool:
    """Whether this class was written by the user."""
    module = cls.__dict__.get("__module__")
    if module == "__main__":
        return True
    return isinstance(module, str) and is_user_module(sys.modules.get(module))


def place(file: str, line: int) -> str:
    """A line in the usual notation."""
    return f"{os.path.basename(file)}:{line}"


def source_line(file: str, line: int) -> str:
    """The text of a line; "" without source."""
    return linecache.getline(file, line).strip()


def files_of(classes: Iterable[type]) -> list[str]:
    """The files of these classes and their bases, the user's first, and of the script."""
    found: dict[str, None] = {}
    for cls in classes:
        for base in cls.__mro__:
            module = sys.modules.get(str(base.__dict__.get("__module__")))
            file = getattr(module, "__file__", None)
            if file and is_user_file(file):
                found.setdefault(file)
    found.update(dict.fromkeys(_user_files()))
    return list(found)


@functools.lru_cache(maxsize=1)
def user_modules(num_modules: int) -> tuple[str, ...]:
    """The names of the user's modules, cached as long as the total number of modules is unchanged."""
    return tuple(name for name, module in list(sys.modules.items()) if is_user_module(module))


def _user_files() -> list[str]:
    files = [getattr(sys.modules.get(name), "__file__", None) for name in user_modules(len(sys.modules))]
    return [str(file) for file in files if file]


def growing_line(name: str, files: Sequence[str], *, attribute: bool = False) -> tuple[str, int] | None:
    """The first line in these files that adds to something called `name`, or to its contents under another name.

    Args:
        name: Name of an attribute or a variable.
        files: Where to look.
        attribute: Whether it is an attribute: lines with a dot before the name come first.
    """
    for before in (r"(?<=\.)", "") if attribute else ("",):
        found = matching_line([pattern.format(name=before + re.escape(name)) for pattern in _GROWS], files)
        if found is not None:
            return found
    added = [_GROWS[0].format(name=re.escape(alias)) for alias in sorted(_names_of_items(name, files))]
    return matching_line(added, files)


def matching_line(patterns: Iterable[str], files: Iterable[str]) -> tuple[str, int] | None:
    """The first line that matches the first of these patterns with any match."""
    sources = [(file, list(_lines(file))) for file in files]
    for pattern in patterns:
        found = re.compile(pattern)
        for file, lines in sources:
            for number, text in lines:
                if found.search(text):
                    return file, number
    return None


def bounds(name: str, files: Sequence[str], *, item: bool = False) -> bool:
    """Whether some line checks the length of something with this name, as code does that keeps it small.

    Args:
        name: Name of an attribute or a variable.
        files: Where to look.
        item: Look for the length of the containers that it holds, not its own.
    """
    name = re.escape(name)
    subjects = [rf"(?:\w+\.)*{name}"]
    if item:  # itself, or under a name of its own
        subjects = [rf"(?:\w+\.)*{name}\[[^\]]*\]", *sorted(_names_of_items(name, files))]
    subject = "|".join(subjects)
    patterns = (
        rf"\blen\(\s*(?:{subject})\s*\)\s*(?:>=|>|==)\s*(?![01]\b)",
        rf"\b(?:{subject})(?!\w).*\.(?:popleft|popitem)\s*\(",
        rf"\bdel\s+.*\b{name}\[.*\[" if item else rf"\bdel\s+.*\b{name}\[",
    )
    looks = re.compile("|".join(patterns))
    for file in files:
        lines = [*_lines(file), (0, "")]
        for (_, text), (_, following) in itertools.pairwise(lines):
            if looks.search(text) and not following.startswith("raise"):  # raising an error is not a bound
                return True
    return False


def _names_of_items(name: str, files: Iterable[str]) -> set[str]:
    """The variables that items of `name` are assigned to: `pool = donors[y]`, `for pool in donors.values():`."""
    taken = re.compile(rf"\b(\w+)\s*=\s*(?:\w+\.)*{name}(?:\[|\.(?:get|setdefault)\()")
    given = re.compile(rf"\bfor\s+(?:\w+\s*,\s*)?(\w+)\s+in\s+(?:\w+\.)*{name}\.(?:values|items)\(")
    texts = [text for file in files for _, text in _lines(file)]
    return {alias for text in texts for pattern in (taken, given) for alias in pattern.findall(text)}


def place_of_code(code: CodeType) -> tuple[str, int] | None:
    """Where the user has written a function; None for a library's function."""
    return (code.co_filename, code.co_firstlineno) if is_user_file(code.co_filename) else None


def _lines(file: str) -> Iterator[tuple[int, str]]:
    for number, text in enumerate(linecache.getlines(file)[:_MOST_LINES], 1):
        text = text.lstrip()
        if text.startswith(("def ", "class ", "async def ")):
            text = _HEAD.sub("", text)  # the rest of the line counts
        if text and not text.startswith("#"):
            yield number, text.partition("  #")[0]


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({f"{paths[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
