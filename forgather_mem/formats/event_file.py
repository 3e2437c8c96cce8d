"""How are TensorBoard event files framed, written, checked and read back?

A file is a row of records: length (8 bytes), its masked CRC-32C (4), payload, the payload's masked CRC (4).
The payload is an `Event` message. TensorBoard reads nothing behind a torn record, so nothing is ever appended
to a file of another process; every run starts a new one.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from forgather_mem.formats.append import AppendFile

# TensorBoard takes every name with "tfevents" in it. A loader that is not the fast one follows only the last
# name of a folder while a run goes on: ours sorts before "events.out...", so that a trainer's own curves stay live.
_OURS = "events.mem.tfevents"
_FRAME = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_MAX_HEADERS = 256
_OVERHEAD_BYTES = _FRAME.size + _CRC.size


@functools.cache
def crc32c() -> Callable[[bytes], int] | None:
    """The checksum in C, or None where google-crc32c has only its Python fall-back (100 times slower)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the fall-back warns; what we do then is better
        try:
            import google_crc32c
        except ImportError:
            return None
    value: Callable[[bytes], int] = google_crc32c.value
    return value if google_crc32c.implementation == "c" else None


class EventFile:
    """The event file of one run, written whole record by whole record (see `AppendFile`).

    Args:
        folder: Where; made at the first record, and again when it is deleted meanwhile.
        begun: Called for each new file: it knows no tag's description yet.
    """

    def __init__(self, folder: Path, begun: Callable[[], None]) -> None:
        checksum = crc32c()
        assert checksum is not None, "without a fast CRC the stock writer is used"
        self._checksum = checksum
        self._folder = folder
        self._begun = begun
        self._headers: dict[int, bytes] = {}  # by length: those of a run are few
        self.file = AppendFile(self._next_file, always_new=True)
        self._append = self.file.append
        self.ready = self.file.ready
        """Whether an event is worth building now."""

    def add(self, payload: bytes) -> bool:
        """Write one event, after `ready()`; whether it is in the file, or waits to go there."""
        # As `frame`, without its calls: in a real step, with cold caches, each costs some 3 us.
        header = self._headers.get(len(payload)) or self._new_header(len(payload))
        crc = self._checksum(payload)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        return self._append(header + payload + masked.to_bytes(4, "little"))

    def _new_header(self, length: int) -> bytes:
        if len(self._headers) >= _MAX_HEADERS:
            self._headers.clear()
        header = self._headers[length] = _header(length, self._checksum)
        return header

    def close(self) -> None:
        self.file.close()

    def problem(self) -> str | None:
        return self.file.problem()

    def _next_file(self) -> tuple[Path, bytes]:
        from tensorboard.compat.proto.event_pb2 import Event

        self._begun()
        first = Event(wall_time=time.time(), file_version="brain.Event:2")
        return _new_path(self._folder), frame(first.SerializeToString(), self._checksum)


def frame(payload: bytes, checksum: Callable[[bytes], int]) -> bytes:
    """One record as it stands in the file."""
    return _header(len(payload), checksum) + payload + _CRC.pack(_masked(checksum(payload)))


def _header(length: int, checksum: Callable[[bytes], int]) -> bytes:
    content = length.to_bytes(8, "little")
    return content + _CRC.pack(_masked(checksum(content)))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _new_path(folder: Path) -> Path:
    stem = f"{_OURS}.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    number = 0
    while (path := folder / f"{stem}.{number}").exists():
        number += 1
    return path


def is_ours(name: str) -> bool:
    """Whether an event file's name is one that `EventFile` gives."""
    return name.startswith(_OURS)


def payloads(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The records of a file's bytes: (where the record ends, payload). Stops at the first torn one.

    A payload whose own checksum is wrong is passed over when the length before it is sound.
    """
    checksum = crc32c()
    head, tail = _FRAME.unpack_from, _CRC.unpack_from
    position, size = 0, len(data)
    while position + _OVERHEAD_BYTES <= size:
        length, length_crc = head(data, position)
        end = position + length + _OVERHEAD_BYTES
        if end > size:
            return
        payload = data[position + 12 : end - 4]
        if checksum is not None:
            crc = checksum(payload)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF  # `_masked`, without its call
        if checksum is None or masked == tail(data, end - 4)[0]:
            yield end, payload
        elif _masked(checksum(data[position : position + 8])) != length_crc:
            return
        position = end


def good_end(path: str | Path) -> int:
    """Where the last whole record of a file ends; behind it TensorBoard reads nothing."""
    return max((end for end, _ in payloads(Path(path).read_bytes())), default=0)


def cut_torn_tail(path: str | Path) -> int:
    """Cut off what stands behind the last whole record of a file that nobody writes; returns the bytes cut."""
    end, size = good_end(path), os.path.getsize(path)
    if end < size:
        os.truncate(path, end)
    return size - end
