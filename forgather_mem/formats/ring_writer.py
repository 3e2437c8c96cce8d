"""Writes a ring, the file that describes a killed process. The format: `formats.ring`.

Almost nothing is imported here: the waiting parent of `forgather-mem run` has to stay small.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import time
import zlib

from forgather_mem.errors import missing, ours
from forgather_mem.files import close_own, identity, open_real, out_of_the_way, remove_real
from forgather_mem.system.forks import FORKS
from forgather_mem.telemetry.events import EVENT_NUMBERS, PHASE_NUMBER

TYPE_CHECKING = False  # importing typing would cost the parent a megabyte and 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Protocol

    class LastState(Protocol):
        """Where the state of a ring stands beside it, and survives this process.

        Attributes:
            pid: Whose it is; 0 when the ring needs it no more.
            check: CRC of the ring's header.
            phase: Its number in `PHASE_NUMBERS`.
            time_s, step: As in `RingState`.
        """

        pid: int
        check: int
        phase: int
        time_s: float
        step: int


# Sizes not read yet are NaN in the file and absent when read back. Adding a name requires another MAGIC, because
# records become longer.
NAMES = (
    "host/rss_bytes", "host/rss_peak_bytes", "host/anon_bytes", "host/limit_used_frac", "host/available_bytes",
    "host/children_pss_bytes", "workers/own_bytes", "workers/cow_bytes", "workers/pss_bytes", "device/allocated_bytes",
    "device/reserved_bytes", "device/step_peak_bytes", "device/headroom_bytes", "step/time_s",
)  # fmt: skip
ERROR = "error"  # the kind of the note that holds the error by which a run ends
# Stored in the file as numbers: add only at the end.
ENDS = ("running", "finished", "exception", "oom", "killed", "interrupted")

HEADER_BYTES, NUM_SAMPLES, NUM_NOTES, NOTE_BYTES = 16384, 512, 16, 1000
MAGIC = b"FGMRING2"
HEAD = struct.Struct("<8sII")  # magic, length and CRC of the JSON that follows
STATE = struct.Struct("<QdqiiQ")  # number, time_s, step, phase, end, number
_PHASE_IN_STATE = 24  # its lowest byte, enough for all phases
SAMPLE = struct.Struct(f"<Qdqdii{len(NAMES)}dQ")  # number, time_s, step, epoch, event, device, values, number
NOTE = struct.Struct("<QII")  # number, length and CRC of the JSON that follows
CELL_BYTES, NOTE_STRIDE = 64, NOTE.size + NOTE_BYTES
STATE_AT = HEADER_BYTES
SAMPLES_AT = STATE_AT + 2 * CELL_BYTES
NOTES_AT = SAMPLES_AT + NUM_SAMPLES * SAMPLE.size
FILE_BYTES = NOTES_AT + NUM_NOTES * NOTE_STRIDE
_NAN = float("nan")
_EVENT, _END = ({name: number for number, name in enumerate(names)} for names in (EVENT_NUMBERS, ENDS))
_PHASE_BYTE = {name: bytes([number]) for name, number in PHASE_NUMBER.items()}
# Looked up once: a training writes some records at every step.
_state_bytes, _sample_bytes = STATE.pack, SAMPLE.pack
_write, _time = os.pwrite, time.time
_LOOK_EVERY_S = 1.0
STATE_EVERY_S = 0.1  # of steps whose states stand elsewhere, too


def ring_name(rank: int | str) -> str:
    """The file of one rank in a run's folder.

    >>> ring_name(0)
    'ring.rank0'
    """
    return f"ring.rank{rank}"


class RingWriter:
    """Writes one ring, replacing an existing file. After a fork the child writes nothing.

    Each write is one system call into the page cache: 1 us, or 15 us in a real step, from cold caches. The file is not
    mapped: a store into a mapped file that somebody has truncated, or whose disk is full, would end the process by
    SIGBUS. A write that fails is left out. About once a second the file is looked at: one that was truncated or copied
    over begins anew.

    Args:
        path: The file; its folder exists.
        header: What `formats.ring` lists; JSON-able. Of too much text `argv` and `versions` are left out.
        find_state: Gives, for the first bytes of the file, where its states stand beside it; None without.

    Attributes:
        beside: That place, for the one who knows the phases of a step to store them; None where each is written.

    Raises:
        OSError: when the file can't be made, or its disk has no room for it.
    """

    def __init__(
        self,
        path: str | Path,
        header: Mapping[str, object],
        find_state: Callable[[bytes], LastState | None] = lambda header: None,
    ) -> None:
        step = header.get("step")
        self.step = step if isinstance(step, int) else 0  # step of the last state written
        self.problem: str | None = None  # why something is missing in the file
        self._phase_at = 0
        self._states = self._samples = self._notes = 0
        self._values: tuple[float, ...] = (_NAN,) * len(NAMES)
        self._forks = FORKS.number
        self._header = _header_bytes(header)
        self._file = _new_file(str(path), self._header)
        self._inode = identity(self._file)
        self._looked_s = self._stated_s = _time()
        self.beside = find_state(self._header)
        self.state(self.step, "other")

    def state(self, step: int, phase: str, end: str = "running") -> None:
        """Write a sign of life: steps done, the current phase, and finally how the run ended."""
        if self._forks == FORKS.number:
            self.step = step
            self._states = number = self._states + 1
            at = STATE_AT + (number & 1) * CELL_BYTES
            self._phase_at = at + _PHASE_IN_STATE
            now_s, told, beside = _time(), PHASE_NUMBER.get(phase, 0), self.beside
            self._stated_s = now_s
            if beside is not None:
                beside.step, beside.phase, beside.time_s = step, told, now_s
            if end != "running":
                self._looked_s = 0.0  # what stands there at last is to be whole
            self._put(at, _state_bytes(number, now_s, step, told, _END.get(end, 0), number), now_s)

    def step_ended(self, step: int) -> None:
        """A step is over, of those whose states stand beside the ring."""
        beside = self.beside
        if beside is None or self._forks != FORKS.number:
            return
        beside.step, beside.phase, beside.time_s = step, 0, _time()
        if not 0 <= beside.time_s - self._stated_s < STATE_EVERY_S:
            self.state(step, "other")

    def phase(self, phase: str) -> None:
        """Another phase begins in the same step: one byte of the state changes, its time stays."""
        self._put(self._phase_at, _PHASE_BYTE.get(phase, b"\0"), self._looked_s)

    def sample(
        self,
        step: int,
        values: Mapping[str, float],
        *,
        event: str = "step_end",
        epoch: float | None = None,
        time_s: float | None = None,
        device: int | None = None,
    ) -> None:
        """Write a record. A size missing from `values` keeps its last value."""
        self._samples = number = self._samples + 1
        self._values = known = tuple(map(values.get, NAMES, self._values))
        time_s = _time() if time_s is None else time_s
        epoch, device = _NAN if epoch is None else epoch, -1 if device is None else device
        record = _sample_bytes(number, time_s, step, epoch, _EVENT.get(event, 0), device, *known, number)
        self._put(SAMPLES_AT + number % NUM_SAMPLES * SAMPLE.size, record, time_s)

    def note(self, kind: str, step: int, text: str) -> None:
        """Write a finding; a long text is truncated."""
        data = b""
        for size in (NOTE_BYTES, NOTE_BYTES // 16):  # a character takes up to twelve bytes
            data = json.dumps({"kind": kind[:40], "step": step, "text": text[:size]}).encode()
            if len(data) <= NOTE_BYTES:
                break
        self._notes = number = self._notes + 1
        at = NOTES_AT + number % NUM_NOTES * NOTE_STRIDE
        self._put(at, NOTE.pack(number, len(data), zlib.crc32(data)) + data, _time())

    def close(self) -> None:
        """Close the file; what was written stays."""
        if self.beside is not None and self._forks == FORKS.number:
            self.beside.pid = 0
        self._forks, self.beside = -1, None
        file, self._file = self._file, -1
        with missing(OSError):  # what a server has not accepted by now is lost
            close_own(file, self._inode)

    def _put(self, at: int, data: bytes, now_s: float) -> None:
        if self._forks != FORKS.number:  # a forked child, or closed
            return
        try:
            if identity(self._file) != self._inode:  # our descriptor was closed, and its number may be another file's
                raise OSError(errno.EBADF, "somebody has closed the file")
            if not 0 <= now_s - self._looked_s < _LOOK_EVERY_S:
                self._looked_s = now_s
                self._look()
            _write(self._file, data, at)
        except ours(OSError) as error:
            self.problem = f"not all was written: {error.strerror or error}"
            # Else the server has gone: what stands there is all there will be
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self.close()

    def _look(self) -> None:
        """Begin the file anew where somebody has truncated it or copied another over it."""
        whole = os.fstat(self._file).st_size == FILE_BYTES
        if not whole or os.pread(self._file, HEAD.size, 0) != self._header[: HEAD.size]:
            os.ftruncate(self._file, 0)
            _fill(self._file, self._header)


def _new_file(path: str, header: bytes) -> int:
    """The file, open, with all the room that it will take."""
    with contextlib.suppress(FileNotFoundError):
        remove_real(path)
    file = open_real(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        _fill(file, header)
    except OSError:
        os.close(file)
        remove_real(path)
        raise
    return out_of_the_way(file)


def _fill(file: int, header: bytes) -> None:
    os.posix_fallocate(file, 0, FILE_BYTES)
    os.pwrite(file, header, 0)


def _header_bytes(header: Mapping[str, object]) -> bytes:
    kept = dict(header)
    while len(text := json.dumps(kept).encode()) > HEADER_BYTES - HEAD.size:
        del kept[max(kept, key=lambda key: len(json.dumps(kept[key])))]  # the longest
    return HEAD.pack(MAGIC, len(text), zlib.crc32(text)) + text
