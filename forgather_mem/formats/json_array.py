"""How does a JSON array in a file grow, so that the file is valid JSON after every write, whatever happens?

One element a line. Space is taken first, as blanks behind the closing bracket, where JSON allows them; then
one `pwrite` puts element and bracket over the old bracket. A full disk refuses the blanks, and the array is
as it was. Between two pages of 4 KiB the kernel looks for a SIGKILL: of an element that lies across their border and is
being written at that very moment a part may stay (1 of 100 kills of a process that did nothing but write); the next
process that goes on with the file cuts it off. Nothing better is possible: JSON has no way to hide what is not whole.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import time
from collections.abc import Mapping
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

from forgather_mem.formats.append import FIRST_RETRY_S, LONGEST_PAUSE_S

logger = logging.getLogger(__name__)

_TAIL = b"\n]\n"
# Deeper than any configuration; a structure that holds itself ends here.
_MAX_DEPTH = 20
_BETWEEN = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")


class JsonArrayFile:
    """A JSON array that grows by whole elements; nothing is raised.

    A file that exists is continued, and what a dead process or machine has torn is cut off behind its last whole
    element. An element that can't be written is dropped and counted; the next try comes after a pause that doubles up
    to 30 s. There is no fsync: an element survives the death of the process, not that of the machine. After a fork the
    child writes nothing.

    Args:
        path: The file; its folder is made when the first element is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pid = os.getpid()
        self._fd = -1
        self._bracket = self._size = 0  # where the array ends, and the file
        self._empty = True
        self._retry_at, self._retry_s = 0.0, FIRST_RETRY_S
        self._error: str | None = None
        self.written = self.dropped = 0

    def append(self, record: Mapping[str, Any]) -> bool:
        """Write one element; whether it is in the file."""
        if os.getpid() != self._pid:
            return False
        if time.monotonic() < self._retry_at:
            self.dropped += 1
            return False
        try:
            self._reach_end()
            self._put((b"\n" if self._empty else b",\n") + element(record) + _TAIL)
        except (OSError, _NoArrayError) as error:
            self._failed(error)
            return False
        self.written += 1
        self._empty, self._retry_s = False, FIRST_RETRY_S
        return True

    def close(self) -> None:
        """Close the file; the next element opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def problem(self) -> str | None:
        """A sentence for the report, or None when all went well."""
        if not self.dropped:
            return None
        return f"{self.dropped:,} of {self.dropped + self.written:,} records dropped ({self._error}; {self.path})"

    def _reach_end(self) -> None:
        """Open the file, and know where its array ends: it may have been deleted, or have grown by another's hand."""
        status = os.fstat(self._fd) if self._fd >= 0 else None
        if status is not None and not status.st_nlink:
            self.close()
        if self._fd < 0:
            if not self.path.exists():
                _create(self.path)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            status = None
        if status is None or status.st_size != self._size:
            self._find_end()

    def _find_end(self) -> None:
        data = self.path.read_bytes()
        if not data.strip(b" \t\r\n\0"):  # made by a machine that crashed before it was filled
            data = b"["
            os.pwrite(self._fd, data, 0)
        end, self._empty, whole = _end_of_array(data)
        self._bracket, self._size = end, len(data)
        if not whole:
            os.pwrite(self._fd, _TAIL, end)
            os.ftruncate(self._fd, end + len(_TAIL))
            self._size = end + len(_TAIL)

    def _put(self, tail: bytes) -> None:
        """The new end of the array over the old one, in blanks that are there already."""
        missing = self._bracket + len(tail) - self._size
        if missing > 0:
            taken = os.pwrite(self._fd, b" " * missing, self._size)
            if taken < missing:
                os.ftruncate(self._fd, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += missing
        done = os.pwrite(self._fd, tail, self._bracket)
        while done < len(tail):  # only on file systems that copy what is written over
            done += os.pwrite(self._fd, tail[done:], self._bracket + done)
        self._bracket += len(tail) - len(_TAIL)

    def _failed(self, error: OSError | _NoArrayError) -> None:
        self.dropped += 1
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if self._error is None:
            logger.warning("can't write %s: %s; records are dropped until it works again", self.path, text)
        self._error = text
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_PAUSE_S)
        self._size = -1  # look again where the array ends


def element(record: Mapping[str, Any]) -> bytes:
    """One element as a line of JSON, whatever values it holds.

    Numbers of other libraries become numbers, dates their ISO form, and what JSON has no form for its text; a number
    that is infinite or none becomes null.

    >>> element({"loss": float("nan"), "tags": ("a", Path("b")), 1: True})
    b'{"loss":null,"tags":["a","b"],"1":true}'
    """
    return json.dumps(plain(record), separators=(",", ":"), allow_nan=False).encode("ascii")


def plain(value: Any, depth: int = 0) -> Any:
    """The value as JSON can hold it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {str(key): plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [plain(item, depth + 1) for item in value]
        if isinstance(value, date):
            return value.isoformat()
        if hasattr(value, "tolist"):  # numpy and torch, of any shape
            return plain(value.tolist(), depth + 1)
    return str(value)


class _NoArrayError(ValueError):
    """The file holds something else."""


def _create(path: Path) -> None:
    """An empty array, there at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        begun.write_bytes(b"[" + _TAIL)
        begun.replace(path)
    finally:
        begun.unlink(missing_ok=True)


def _end_of_array(data: bytes) -> tuple[int, bool, bool]:
    """Behind the last whole element: (where, whether there is none, whether the file is valid as it is).

    Raises:
        _NoArrayError: the file begins with something else than an array.
    """
    text = data.decode("latin-1")  # a character a byte; what stands in strings is not looked at
    decode = json.JSONDecoder().raw_decode
    end = len(text) - len(text.lstrip()) + 1
    if not text.startswith("[", end - 1):
        raise _NoArrayError("the file exists and holds no JSON array; nothing is written over it")
    empty = True
    while True:
        between = _BETWEEN.match(text, end)
        assert between is not None, "it matches nothing, too"
        start = between.end()
        if text.startswith("]", start):
            return end, empty, "," not in between[0] and not text[start + 1 :].strip()
        try:
            _, end = decode(text, start)
        except ValueError:
            return end, empty, False
        except RecursionError:
            raise _NoArrayError("the file is nested too deeply for a log of ours; nothing is written over it") from None
        empty = False
