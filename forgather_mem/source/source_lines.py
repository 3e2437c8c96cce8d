"""Distinguishes the user's code from libraries', and says which files and classes are theirs."""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType

from forgather_mem.telemetry.redaction import redacted

Line = tuple[str, int]  # a file and the number of a line
OURS = str(Path(__file__).parent.parent) + "/"
_INSTALLED = ("/site-packages/", "/dist-packages/", "<frozen")


@functools.cache
def is_user_file(name: str) -> bool:
    """Whether this file is the user's: neither Python's, nor installed, nor ours.

    >>> is_user_file(os.__file__), is_user_file(__file__), is_user_file("/home/me/train.py")
    (False, False, True)
    """
    if not name or name.startswith((OURS, *_library_folders())):
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
    return isinstance(module, str) and is_user_module(sys.modules.get(module))


def line_name(file: str, line: int) -> str:
    """A line in the usual notation, its file with the folders of its package; of a notebook "In[15], line 3"."""
    return f"{file_name(file)}, line {line}" if file in _cells() else f"{short_file(file)}:{line}"


def file_name(file: str) -> str:
    """A file with the folders of its package, or "In[15]"."""
    return f"In[{_cells()[file]}]" if file in _cells() else short_file(file)


@functools.cache
def short_file(file: str) -> str:
    """The file's path below the folder of `sys.path` from which it is imported, or where a link to it is below the
    working folder; its bare name outside of all.

    >>> short_file("/env/lib/python3.11/site-packages/transformers/trainer.py"), short_file("<stdin>")
    ('transformers/trainer.py', '<stdin>')
    """
    file = os.path.normpath(file)
    roots = [file[: file.rfind(part) + len(part)] for part in _INSTALLED[:2] if part in file]
    roots += [os.path.join(os.path.abspath(folder), "") for folder in ("", *sys.path) if isinstance(folder, str)]
    root = max((root for root in roots if file.startswith(root)), key=len, default="")
    return file.removeprefix(root) if root else os.path.basename(file)


def line_with_text(file: str, line: int) -> str:
    """A line with its text: "train.py:41 (total += loss.item())"."""
    return f"{line_name(file, line)} ({source_line(file, line)})"


def calling_place() -> tuple[str, int] | None:
    """File and number of the innermost line of the user's own that is running; 1 us for each frame on the way to it."""
    places = ((frame.f_code.co_filename, frame.f_lineno) for frame in with_callers(sys._getframe(1)))
    return next((place for place in places if is_user_file(place[0])), None)


def with_callers(frame: FrameType | None) -> Iterator[FrameType]:
    """This frame, its caller's, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


# What a traceback's text says of a frame
_IN_TEXT = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)


def failed_line(error: BaseException) -> str | None:
    """The innermost line of the user's own that an error came through, or is on its way to: "train.py:41"."""
    trace = list(traceback.walk_tb(error.__traceback__))
    callers = [(frame, frame.f_lineno) for frame in with_callers(trace[0][0].f_back if trace else None)]
    lines = [(frame.f_code.co_filename, number) for frame, number in [*reversed(trace), *callers]]
    of_worker = [(file, int(number)) for file, number in _IN_TEXT.findall(str(error))]  # in which it was raised
    return next((line_name(*line) for line in [*reversed(of_worker), *lines] if is_user_file(line[0])), None)


def source_line(file: str, line: int) -> str:
    """The text of a line, without what looks like a secret; "" without source."""
    return redacted(linecache.getline(file, line).strip())


@functools.lru_cache(maxsize=1)
def user_modules(num_modules: int) -> tuple[str, ...]:
    """The names of the user's modules, cached as long as the total number of modules is unchanged."""
    return tuple(name for name, module in list(sys.modules.items()) if is_user_module(module))


def module_files(module: str) -> list[str]:
    """The file of a module; of a notebook its cells, the newest first."""
    found = sys.modules.get(module)
    # A script that has ended, by an error, too, has lost its `__file__`
    if file := getattr(found, "__file__", None) or getattr(getattr(found, "__loader__", None), "path", None):
        return [str(file)]
    cells = _cells() if module == "__main__" else {}
    return sorted(cells, key=cells.__getitem__, reverse=True)


def _cells() -> dict[str, int]:
    """What IPython calls the files of its cells, with their numbers; empty outside of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return dict(getattr(getattr(shell, "compile", None), "_filename_map", {}))


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({f"{paths[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
