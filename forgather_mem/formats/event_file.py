"""TensorBoard event files: framing, writing, checking and reading.

A file is a sequence of records: length (8 bytes), its masked CRC-32C (4), payload, the payload's masked CRC (4). The
payload is an `Event` message. TensorBoard reads nothing after a torn record, so nothing is ever appended to a file of
another process; every run starts a new one.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from forgather_mem.formats.append import AppendFile
from forgather_mem.formats.summaries import file_version_payload
from forgather_mem.system.installed import installed

# TensorBoard accepts every name with "tfevents" in it. Its slow loader follows only the last name of a folder during a
# run: ours sorts before "events.out...", so that a trainer's own curves stay live.
_OURS = "events.mem.tfevents"
_FRAME = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_MAX_HEADERS = 256
_PIECE_BYTES, _MAX_PAYLOAD_BYTES = 4 * 2**20, 2**20
_OVERHEAD_BYTES = _FRAME.size + _CRC.size


@functools.cache
def crc32c() -> Callable[[bytes], int] | None:
    """The checksum in C, or None if google-crc32c only has its Python fallback (100 times slower)."""
    try:
        value: Callable[[bytes], int] = installed("google_crc32c._crc32c").value
    except ImportError:
        return None
    return value


class EventFile:
    """The event file of one run, written whole record by whole record (see `AppendFile`).

    Args:
        folder: Its folder; created at the first record, and again if it is deleted meanwhile.
        begun: Called for each new file: it has no tag descriptions yet.
    """

    def __init__(self, folder: Path, begun: Callable[[], None]) -> None:
        checksum = crc32c()
        assert checksum is not None, "without a fast CRC the stock writer is used"
        self._checksum = checksum
        self._folder = Path(os.path.realpath(folder))  # no link that appears later is followed
        self._begun = begun
        self._headers: dict[int, bytes] = {}  # by length: a run has few lengths
        self.file = AppendFile(self._next_file, always_new=True)
        self._append = self.file.append
        self.ready = self.file.ready
        """Whether an event is worth building now."""

    def add(self, payload: bytes) -> bool:
        """Write one event, after `ready()`; returns whether it is in the file, or buffered for it."""
        # Like `frame`, inlined: in a real step, with cold caches, each call costs some 3 us.
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
        self._begun()
        return _new_path(self._folder), frame(file_version_payload(time.time()), self._checksum)


def frame(payload: bytes, checksum: Callable[[bytes], int]) -> bytes:
    """One record as it appears in the file."""
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


def is_our_file(name: str) -> bool:
    """Whether an event file has a name given by `EventFile`."""
    return name.startswith(_OURS)


def payloads(file: BinaryIO) -> Iterator[bytes]:
    """The payloads of a file's records, from its beginning. Stops at a torn one.

    Passed over are payloads with a wrong checksum when the length before it is sound, and those that are larger than
    any of scalars, pictures for example.
    """
    checksum = crc32c()
    head, tail = _FRAME.unpack_from, _CRC.unpack_from
    size = file.seek(0, os.SEEK_END)
    data, base, position = b"", file.seek(0), 0  # a piece of the file, where it begins, how far in it we are
    while base + position + _OVERHEAD_BYTES <= size:
        if len(data) - position < _FRAME.size:
            data, base, position = data[position:] + file.read(_PIECE_BYTES), base + position, 0
        length, length_crc = head(data, position)
        end = position + length + _OVERHEAD_BYTES
        if base + end > size or (checksum is None and not length):  # the last: zeros that nobody has written
            return
        if length > _MAX_PAYLOAD_BYTES:
            data, base, position = b"", file.seek(base + end), 0
            continue
        if end > len(data):
            data, base, end, position = data[position:] + file.read(_PIECE_BYTES), base + position, end - position, 0
        payload = data[position + _FRAME.size : end - _CRC.size]
        if checksum is not None:
            crc = checksum(payload)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF  # `_masked`, inlined
        if checksum is None or masked == tail(data, end - 4)[0]:
            yield payload
        elif _masked(checksum(data[position : position + 8])) != length_crc:
            return
        position = end
