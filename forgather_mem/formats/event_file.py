"""TensorBoard event files: framing, writing, checking and reading.

A file is a sequence of records: length (8 bytes), its masked CRC-32C (4), payload, the payload's masked CRC (4). The
payload is an `Event` message. TensorBoard reads nothing after a torn record, so nothing is ever appended to a file of
another process; every run starts a new one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from forgather_mem.errors import missing, ours
from forgather_mem.files import open_regular
from forgather_mem.formats.append import AppendFile, Losses
from forgather_mem.formats.summaries import file_version_payload
from forgather_mem.system.installed import installed

# TensorBoard accepts every name with "tfevents" in it. Its slow loader follows only the last name of a folder during a
# run: ours sorts before "events.out...", so that a trainer's own curves stay live.
OURS = "events.mem.tfevents"
_FRAME = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_PIECE_BYTES, _MAX_PAYLOAD_BYTES = 4 * 2**20, 2**20
_OVERHEAD_BYTES = _FRAME.size + _CRC.size


@functools.cache
def crc32c() -> Callable[[bytes], int] | None:
    """The checksum in C, or None if google-crc32c only has its Python fallback (100 times slower)."""
    with missing(ImportError):
        value: Callable[[bytes], int] = installed("google_crc32c._crc32c").value
        return value
    return None


class EventFile:
    """The event file of one run, written whole record by whole record (see `AppendFile`).

    Args:
        folder: Its folder; created at the first record, and again if it is deleted meanwhile.
        begun: Called for each new file: it has no tag descriptions yet.
    """

    def __init__(self, folder: Path, begun: Callable[[], object]) -> None:
        checksum = crc32c()
        assert checksum is not None, "without a fast CRC the stock writer is used"
        self._checksum = checksum
        self._folder = Path(os.path.realpath(folder))  # no link that appears later is followed
        self._begun = begun
        self.file = AppendFile(self._next_file, always_new=True)
        self.close, self.problem = self.file.close, self.file.problem
        self.ready = self.file.ready
        """Whether an event is worth building now."""

    def add(self, payload: bytes) -> bool:
        """Write one event, after `ready()`; returns whether it is in the file, or buffered for it."""
        return self.file.append(frame(payload, self._checksum))

    def _next_file(self) -> tuple[Path, bytes]:
        self._begun()
        stem, number = f"{OURS}.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}", 0
        while (path := self._folder / f"{stem}.{number}").exists():
            number += 1
        return path, frame(file_version_payload(time.time()), self._checksum)


def frame(payload: bytes, checksum: Callable[[bytes], int]) -> bytes:
    """One record as it appears in the file."""
    length = len(payload).to_bytes(8, "little")
    return length + _CRC.pack(_masked(checksum(length))) + payload + _CRC.pack(_masked(checksum(payload)))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


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
        if checksum is None or _masked(checksum(payload)) == tail(data, end - 4)[0]:
            yield payload
        elif _masked(checksum(data[position : position + 8])) != length_crc:
            return
        position = end


# Exceptions from opening a folder: of the disk, an unknown protocol, a missing package for the protocol.
_CANT_OPEN = (OSError, ValueError, ImportError)
_WITH_WRITER = "with the TensorBoard writer"


class StockWriter:
    """Writes through a third-party writer; its failures are counted, not raised.

    A given writer is flushed at the end and not closed. One that we open has a thread, may lose two minutes if the
    process is killed, and is reopened after a failure. After a fork the child writes nothing: the writer's thread is
    missing there, and it would wait for it.

    Args:
        make: Returns the writer; called at the first event. The writer has `add_event(event)`, or is a
            `torch.utils.tensorboard.SummaryWriter`, or has that class's `add_scalar` and `add_text`.
        begun: Called for each new writer: its file has no tag descriptions yet.
        owned: Whether we close it.
    """

    def __init__(self, make: Callable[[], object], begun: Callable[[], object], *, owned: bool) -> None:
        self._make = make
        self._begun = begun
        self._owned = owned
        self._writer: Any = None
        self._pid = os.getpid()
        self._losses = Losses()

    def ready(self) -> bool:
        """Whether an event is worth building now; if not, counts it as dropped."""
        if os.getpid() != self._pid:
            return False
        ready = self._writer is not None or (time.monotonic() >= self._losses.retry_at and self._open())
        self._losses.dropped += not ready
        return ready

    def add(self, payload: bytes) -> bool:
        """Pass one event on, after `ready()`; returns whether the writer took it."""
        try:
            _hand_over(self._writer, payload)
        except ours(OSError) as error:
            self._losses.note(error, _WITH_WRITER)
            if self._owned:  # the writer keeps its thread's failure and raises it at every call
                self.close()
            return False
        self._losses.took()
        return True

    def close(self) -> None:
        """Close the writer if it is ours, else flush it."""
        writer, self._writer = self._writer, None
        if os.getpid() != self._pid:  # in a forked child it would wait forever
            return
        try:
            getattr(writer, "close" if self._owned else "flush", bool)()
        except ours(OSError) as error:
            self._losses.note(error, _WITH_WRITER, 0)

    def problem(self) -> str | None:
        """A sentence for the report, or None if all went well."""
        return self._losses.problem("; TensorBoard's writer")

    def _open(self) -> bool:
        try:
            self._writer = self._make()
        except _CANT_OPEN as error:
            self._losses.note(error, _WITH_WRITER, 0)
            return False
        self._begun()
        return True


def tensorboard_writer(folder: str) -> object:
    """TensorBoard's own event file writer; folders may be addresses such as `s3://bucket/run`."""
    installed("tensorboard")
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    return EventFileWriter(folder, filename_suffix=".forgather_mem")


def _hand_over(writer: Any, payload: bytes) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event.FromString(payload)
    # tensorboardX has the same attributes, but messages of another class
    is_torchs = any(cls.__module__.startswith("torch.utils.tensorboard") for cls in type(writer).__mro__)
    if hasattr(writer, "add_event"):
        writer.add_event(event)
    elif is_torchs and writer.file_writer is not None:
        writer.file_writer.add_event(event, step=event.step, walltime=event.wall_time)
    else:
        for value in event.summary.value:
            if value.HasField("simple_value"):
                writer.add_scalar(value.tag, value.simple_value, event.step, event.wall_time)
            elif value.metadata.plugin_data.plugin_name == "text":
                writer.add_text(value.tag, value.tensor.string_val[0].decode(), event.step, event.wall_time)


# ---- reads the scalars in event files, of one process or a whole folder, with TensorBoard's own message classes ----

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Points = tuple[array[int], array[float], array[float]]  # steps, times and values of a tag

MOST_POINTS = 4_000_000  # more than a page of a million steps has of one tag; 24 bytes and 1.5 us each


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarSeries:
    """One tag's points in writing order; a step written twice appears twice."""

    steps: NDArray[np.int64]
    wall_times_s: NDArray[np.float64]
    values: NDArray[np.float64]


def read_scalars(path: str | Path, wanted: Callable[[str], bool] | None = None) -> dict[str, ScalarSeries]:
    """All scalars of an event file, or of those directly in a folder, in the order of their names, by tag.

    Reads what `add_scalar` and `TensorBoardSink` write; other summaries are skipped, also tensors of one number, as
    `add_scalar` writes them with `new_style`. A torn end is left out. Takes 1.5 s per million scalars, and reads no
    more than `MOST_POINTS`.

    Args:
        path: The file or the folder.
        wanted: Whether a tag's points are to be kept; default: all.

    Raises:
        OSError: a file can't be read, or is no regular file.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    is_wanted = functools.cache(wanted or (lambda tag: True))
    points: defaultdict[str, _Points] = defaultdict(lambda: (array("q"), array("d"), array("d")))
    number = 0
    for one in _event_files(Path(path)):
        with open_regular(one) as file:
            for payload in payloads(file):
                with contextlib.suppress(DecodeError):
                    event = Event.FromString(payload)
                    step, wall_time_s = event.step, event.wall_time
                    for value in event.summary.value:
                        tag = value.tag
                        if value.HasField("simple_value") and is_wanted(tag) and number < MOST_POINTS:
                            number += 1
                            steps, times_s, values = points[tag]
                            steps.append(step)
                            times_s.append(wall_time_s)
                            values.append(value.simple_value)
    return {tag: _series(*found) for tag, found in points.items()}


def _series(steps: array[int], times_s: array[float], values: array[float]) -> ScalarSeries:
    import numpy as np

    return ScalarSeries(steps=np.array(steps), wall_times_s=np.array(times_s), values=np.array(values))


def _event_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.iterdir() if "tfevents" in p.name and p.is_file() and not p.is_symlink())
