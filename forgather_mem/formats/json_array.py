"""A JSON array that grows in a file and stays valid JSON after every write.

One element per line. Space is allocated first, as blanks after the closing bracket, where JSON allows them; then one
`pwrite` puts element and bracket over the old bracket. A full disk refuses the blanks, and the array is unchanged.
Between two pages of 4 KiB the kernel checks for a SIGKILL: a part may remain of an element across their border that is
being written at that moment (1 in 100 kills of a process that did nothing but write); the next process that continues
the file cuts it off. Nothing better is possible: JSON has no way to hide an incomplete element.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import stat
import time
from collections.abc import Mapping
from datetime import date
from enum import Enum
from pathlib import Path

from forgather_mem.errors import ours
from forgather_mem.files import make_real_folder, open_real, out_of_the_way, replace_file
from forgather_mem.formats.append import FIRST_RETRY_S, LONGEST_PAUSE_S

logger = logging.getLogger(__name__)

_TAIL = b"\n]\n"
# Deeper than any configuration; a structure that contains itself is cut off here.
_MAX_DEPTH = 20
_BETWEEN = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")


class JsonArrayFile:
    """A JSON array that grows by whole elements; never raises.

    An existing file is continued; anything torn by a dead process or machine is cut off after the last whole element.
    An element that can't be written is dropped and counted; the next try follows a pause that doubles up to 30 s. There
    is no fsync: an element survives the death of the process, but not of the machine. After a fork the child writes
    nothing.

    Args:
        path: The file; its folder is created when the first element is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._real_path = os.path.realpath(path)  # no link that appears later is followed
        self._pid = os.getpid()
        self._fd = -1
        self._inode = (0, 0)
        self._bracket = self._size = 0  # end of the array, end of the file
        self._empty = True
        self._retry_at, self._retry_s = 0.0, FIRST_RETRY_S
        self._error: str | None = None
        self.written = self.dropped = 0

    def append(self, record: Mapping[str, object]) -> bool:
        """Write one element; returns whether it is in the file."""
        if os.getpid() != self._pid:
            return False
        if time.monotonic() < self._retry_at:
            self.dropped += 1
            return False
        try:
            self._reach_end()
            self._put((b"\n" if self._empty else b",\n") + element(record) + _TAIL)
        except ours(OSError, _NoArrayError) as error:
            self._failed(error)
            return False
        self.written += 1
        self._empty, self._retry_s = False, FIRST_RETRY_S
        return True

    def close(self) -> None:
        """Close the file; the next element reopens it."""
        if self._fd >= 0 and self._status() is not None:
            os.close(self._fd)
        self._fd = -1

    def problem(self) -> str | None:
        """A sentence for the report, or None if all went well."""
        if not self.dropped:
            return None
        return f"{self.dropped:,} of {self.dropped + self.written:,} records dropped ({self._error}; {self.path})"

    def _reach_end(self) -> None:
        """Open the file and find the end of its array: it may have been deleted, or extended by another process."""
        status = self._status() if self._fd >= 0 else None
        if status is not None and not status.st_nlink:
            self.close()
        if self._fd < 0:
            if not os.path.exists(self._real_path):
                _create(self._real_path)
            self._fd = out_of_the_way(open_real(self._real_path, os.O_RDWR | os.O_NONBLOCK))
            opened = os.fstat(self._fd)
            self._inode = opened.st_dev, opened.st_ino
            if not stat.S_ISREG(opened.st_mode):  # reading a pipe would wait for ever
                self.close()
                raise _NoArrayError("it is not a regular file")
            status = None
        if status is None or status.st_size != self._size:
            self._find_end()

    def _status(self) -> os.stat_result | None:
        """Of our file; None where somebody has closed it, and another may have the number now."""
        try:
            status = os.fstat(self._fd)
            if (status.st_dev, status.st_ino) == self._inode:
                return status
        except ours(OSError):
            logger.debug("somebody has closed %s", self.path)
        self._fd = -1
        return None

    def _find_end(self) -> None:
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            data = file.read()
        if not data.strip(b" \t\r\n\0"):  # created, but not filled before the machine crashed
            data = b"["
            os.pwrite(self._fd, data, 0)
        end, self._empty, whole = _end_of_array(data)
        self._bracket, self._size = end, len(data)
        if not whole:
            os.pwrite(self._fd, _TAIL, end)
            os.ftruncate(self._fd, end + len(_TAIL))
            self._size = end + len(_TAIL)

    def _put(self, tail: bytes) -> None:
        """Write the new end of the array over the old one, into blanks that already exist."""
        missing = self._bracket + len(tail) - self._size
        if missing > 0:
            taken = os.pwrite(self._fd, b" " * missing, self._size)
            if taken < missing:
                os.ftruncate(self._fd, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += missing
        done = os.pwrite(self._fd, tail, self._bracket)
        while done < len(tail):  # only on copy-on-write file systems
            done += os.pwrite(self._fd, tail[done:], self._bracket + done)
        self._bracket += len(tail) - len(_TAIL)

    def _failed(self, error: Exception) -> None:
        self.dropped += 1
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if self._error is None:
            logger.warning("can't write %s: %s; records are dropped until it works again", self.path, text)
        self._error = text
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_PAUSE_S)
        self._size = -1  # find the end of the array again


def element(record: Mapping[str, object]) -> bytes:
    """One element as a line of JSON, whatever its values.

    Numbers of other libraries become numbers, dates their ISO form, and anything else that JSON can't represent its
    text; infinite numbers and NaN become null.

    >>> element({"loss": float("nan"), "tags": ("a", Path("b")), 1: True})
    b'{"loss":null,"tags":["a","b"],"1":true}'
    """
    return json.dumps(plain(record), separators=(",", ":"), allow_nan=False).encode("ascii")


def plain(value: object, depth: int = 0) -> object:
    """The value in a form that JSON can hold."""
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


def _create(path: str) -> None:
    """An empty array, created atomically."""
    make_real_folder(os.path.dirname(path))
    replace_file(path, b"[" + _TAIL, through_links=False)


def _end_of_array(data: bytes) -> tuple[int, bool, bool]:
    """The end of the last whole element: (position, whether there is none, whether the file is valid unchanged).

    Raises:
        _NoArrayError: if the file begins with anything other than an array.
    """
    text = data.decode("latin-1")  # one character per byte; the contents of strings don't matter
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
