"""A JSON array that grows in a file and is valid JSON between two writes.

One element per line: one `pwrite` puts the next one and the closing bracket over the old bracket. Where the disk takes
only a part of that, the old bracket comes back. A process that is killed in the middle of a write may leave a part of
an element (1 in 100 kills of a process that did nothing but write); whoever continues the file cuts it off.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from forgather_mem.errors import ours
from forgather_mem.files import make_real_folder, open_real, replace_file
from forgather_mem.formats.append import Losses
from forgather_mem.formats.jsonl import plain

_TAIL = b"\n]\n"
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
        self._end, self._empty = 0, True  # of the last element; whether there is none
        self._left = (0, 0, 0)  # device, inode and size of the file after the last element
        self._losses = Losses()

    def append(self, record: Mapping[str, object]) -> bool:
        """Write one element; returns whether it is in the file."""
        if os.getpid() != self._pid:
            return False
        if time.monotonic() < self._losses.retry_at:
            self._losses.dropped += 1
            return False
        try:
            if not os.path.exists(self._real_path):
                make_real_folder(os.path.dirname(self._real_path))
                replace_file(self._real_path, b"[" + _TAIL, through_links=False)
            file = open_real(self._real_path, os.O_RDWR | os.O_NONBLOCK)
            try:
                self._put(file, element(record))
            finally:
                os.close(file)
        except ours(OSError, _NoArrayError) as error:
            self._losses.note(error, self.path)
            self._left = (0, 0, 0)  # find the end of the array again
            return False
        self._losses.took()
        return True

    def problem(self) -> str | None:
        """A sentence for the report, or None if all went well."""
        return self._losses.problem(f"; {self.path}")

    def _put(self, file: int, data: bytes) -> None:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
            raise _NoArrayError("it is not a regular file")
        if (status.st_dev, status.st_ino, status.st_size) != self._left:  # another file, or another writer's element
            with open(file, "rb", closefd=False) as whole:
                found = whole.read()
            if not found.strip(b" \t\r\n\0"):  # created, but not filled before the machine crashed
                found = b"["
                os.pwrite(file, found, 0)
            self._end, self._empty = _end_of_array(found)
            if found[self._end :] != _TAIL:  # what stands after the last whole element is cut off
                os.pwrite(file, _TAIL, self._end)
                os.ftruncate(file, self._end + len(_TAIL))
        new = (b"\n" if self._empty else b",\n") + data + _TAIL
        if os.pwrite(file, new, self._end) < len(new):
            os.pwrite(file, _TAIL, self._end)
            os.ftruncate(file, self._end + len(_TAIL))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._end, self._empty = self._end + len(new) - len(_TAIL), False
        self._left = status.st_dev, status.st_ino, self._end + len(_TAIL)


def element(record: Mapping[str, object]) -> bytes:
    """One element as a line of JSON, whatever its values.

    Numbers of other libraries become numbers, dates their ISO form, and anything else that JSON can't represent its
    text; infinite numbers and NaN become null.

    >>> element({"loss": float("nan"), "tags": ("a", Path("b")), 1: True})
    b'{"loss":null,"tags":["a","b"],"1":true}'
    """
    return json.dumps(plain(record), separators=(",", ":"), allow_nan=False).encode("ascii")


class _NoArrayError(ValueError):
    """The file holds something else."""


def _end_of_array(data: bytes) -> tuple[int, bool]:
    """Where the last whole element ends, and whether there is none.

    Raises:
        _NoArrayError: if the file begins with anything other than an array.
    """
    text = data.decode("latin-1")  # one character per byte; the contents of strings don't matter
    decode = json.JSONDecoder().raw_decode
    end = len(text) - len(text.lstrip()) + 1
    if not text.startswith("[", end - 1):
        raise _NoArrayError("the file exists and holds no JSON array; nothing is written over it")
    empty = True
    try:
        while between := _BETWEEN.match(text, end):
            _, end = decode(text, between.end())
            empty = False
    except ValueError:  # the closing bracket, or what was torn
        pass
    except RecursionError:
        raise _NoArrayError("the file is nested too deeply for a log of ours; nothing is written over it") from None
    return end, empty
