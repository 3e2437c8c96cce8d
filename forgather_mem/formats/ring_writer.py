"""How does a process write its ring, the file that tells of it when it was killed? The format: `formats.ring`.

Next to nothing is imported here: the waiting parent of `forgather-mem run` has to stay small.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
import zlib

from forgather_mem.forks import FORKS

TYPE_CHECKING = False  # importing typing would cost the parent a megabyte and 4 ms
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

# What was not read yet is NaN in the file and absent when read back. Who adds a name here gives the format
# another MAGIC, because a record becomes longer.
NAMES = (
    "host/rss_bytes", "host/rss_peak_bytes", "host/anon_bytes", "host/limit_used_frac", "host/available_bytes",
    "host/children_pss_bytes", "workers/own_bytes", "workers/cow_bytes", "device/allocated_bytes",
    "device/reserved_bytes", "device/step_peak_bytes", "device/headroom_bytes", "step/time_s",
)  # fmt: skip
# These stand in the file as numbers: add at the end only.
PHASES = (
    "other", "startup", "data", "forward", "backward", "optimizer", "evaluate", "save", "resume", "generate",
)  # fmt: skip
EVENTS = (
    "other", "step_end", "evaluate", "predict", "save", "train_begin", "train_end", "epoch_begin", "epoch_end", "log",
    "prediction_step", "init_end", "push_begin",
)  # fmt: skip
ENDS = ("running", "finished", "exception", "oom", "killed", "interrupted")

HEADER_BYTES, NUM_SAMPLES, NUM_NOTES, NOTE_BYTES = 16384, 512, 16, 1000
MAGIC = b"FGMRING1"
HEAD = struct.Struct("<8sII")  # magic, length and CRC of the JSON that follows
STATE = struct.Struct("<QdqiiQ")  # number, time_s, step, phase, end, number
_PHASE_IN_STATE = 24  # its lowest byte, alone enough for all phases
SAMPLE = struct.Struct(f"<Qdqdii{len(NAMES)}dQ")  # number, time_s, step, epoch, event, device, values, number
NOTE = struct.Struct("<QII")  # number, length and CRC of the JSON that follows
CELL_BYTES, NOTE_STRIDE = 64, NOTE.size + NOTE_BYTES
STATE_AT = HEADER_BYTES
SAMPLES_AT = STATE_AT + 2 * CELL_BYTES
NOTES_AT = SAMPLES_AT + NUM_SAMPLES * SAMPLE.size
FILE_BYTES = NOTES_AT + NUM_NOTES * NOTE_STRIDE
# Where a store into a mapped file can fail only when the machine's own disk does. Elsewhere, on a network, it fails
# when somebody deletes the folder on another node, and such a store ends the process by SIGBUS.
_LOCAL = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")
_NAN = float("nan")
_PHASE, _EVENT, _END = ({name: number for number, name in enumerate(names)} for names in (PHASES, EVENTS, ENDS))
# Looked up once: each record takes under a microsecond, and a training writes some at every step.
_put_state, _put_sample = STATE.pack_into, SAMPLE.pack_into
_time = time.time


def ring_name(rank: int) -> str:
    """The file of one rank in a run's folder.

    >>> ring_name(0)
    'ring.rank0'
    """
    return f"ring.rank{rank}"


class RingWriter:
    """Writes one ring; an existing file of this name is replaced. After a fork the child writes nothing.

    Args:
        path: The file; its folder exists.
        header: What `formats.ring` lists; JSON-able. Of too much text `argv` and `versions` are left out.
        mapped: Store into the mapped file (0.1 us); else by a system call (1 us more), which fails without harm.
            Default: mapped on the machine's own file systems, as `/proc/self/mountinfo` has them.

    Raises:
        OSError: when the file can't be made, or its disk has no room for it. It takes all its space at once: a
            store into a page for which there is no room would end the process.
    """

    __slots__ = ("_file", "_forks", "_map", "_notes", "_phase_at", "_samples", "_states", "_values", "step")

    def __init__(self, path: str | Path, header: Mapping[str, Any], *, mapped: bool | None = None) -> None:
        self.step = int(header.get("step", 0))  # of the state that was written last
        self._phase_at = 0
        self._states = self._samples = self._notes = 0
        self._values: tuple[float, ...] = (_NAN,) * len(NAMES)
        self._forks = FORKS.number
        self._file, self._map = _new_file(
            str(path), _header_bytes(header), _is_local(path) if mapped is None else mapped
        )
        self.state(self.step, "other")

    def state(self, step: int, phase: str, end: str = "running") -> None:
        """A sign of life: steps done, the phase that begins now, and at last how the run ended."""
        if self._forks == FORKS.number:
            self.step = step
            self._states = number = self._states + 1
            at = STATE_AT + (number & 1) * CELL_BYTES
            self._phase_at = at + _PHASE_IN_STATE
            _put_state(self._map, at, number, _time(), step, _PHASE.get(phase, 0), _END.get(end, 0), number)
            if self._file >= 0:
                self._store(at, STATE.size)

    def phase(self, phase: str) -> None:
        """Another phase begins in the same step: one byte of the state changes, its time stays."""
        if self._forks == FORKS.number:
            self._map[self._phase_at] = _PHASE.get(phase, 0)
            if self._file >= 0:
                self._store(self._phase_at, 1)

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
        """A record. A size that `values` does not have keeps the last value that was written for it."""
        if self._forks != FORKS.number:
            return
        self._samples = number = self._samples + 1
        self._values = known = tuple(map(values.get, NAMES, self._values))
        at = SAMPLES_AT + number % NUM_SAMPLES * SAMPLE.size
        _put_sample(
            self._map,
            at,
            number,
            _time() if time_s is None else time_s,
            step,
            _NAN if epoch is None else epoch,
            _EVENT.get(event, 0),
            -1 if device is None else device,
            *known,
            number,
        )
        if self._file >= 0:
            self._store(at, SAMPLE.size)

    def note(self, kind: str, step: int, text: str) -> None:
        """A finding. Of a long text the beginning is kept."""
        if self._forks != FORKS.number:
            return
        data = b""
        for size in (NOTE_BYTES, NOTE_BYTES // 16):  # a character takes up to twelve bytes
            data = json.dumps({"kind": kind[:40], "step": step, "text": text[:size]}).encode()
            if len(data) <= NOTE_BYTES:
                break
        self._notes = number = self._notes + 1
        at = NOTES_AT + number % NUM_NOTES * NOTE_STRIDE
        self._map[at + NOTE.size : at + NOTE.size + len(data)] = data
        NOTE.pack_into(self._map, at, number, len(data), zlib.crc32(data))
        if self._file >= 0:
            self._store(at, NOTE_STRIDE)

    def close(self) -> None:
        """Let go of the file; what was written stays."""
        self._forks = -1
        file, self._file = self._file, -1
        if file >= 0:
            try:
                os.close(file)
            except OSError:
                return  # what a server has not taken by now, it will not take
        if isinstance(self._map, mmap.mmap):
            self._map.close()

    def _store(self, at: int, size: int) -> None:
        try:
            os.pwrite(self._file, memoryview(self._map)[at : at + size], at)
        except OSError:  # the folder is gone, or its server: what stands there is all there will be
            self.close()


def _new_file(path: str, header: bytes, mapped: bool) -> tuple[int, mmap.mmap | bytearray]:
    """The file, open or -1, and where its content is put."""
    if os.path.lexists(path):
        os.unlink(path)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        if mapped:
            os.posix_fallocate(file, 0, FILE_BYTES)
        else:
            os.ftruncate(file, FILE_BYTES)
        os.pwrite(file, header, 0)
        if not mapped:
            return file, bytearray(FILE_BYTES)
        content = mmap.mmap(file, FILE_BYTES)
        os.close(file)
        return -1, content
    except OSError:
        os.close(file)
        os.unlink(path)
        raise


def _is_local(path: str | Path) -> bool:
    """Whether a file there lies on one of the machine's own file systems; no where that can't be known."""
    folder = os.path.join(os.path.dirname(os.path.realpath(path)), "")
    found, kind = "", ""
    try:
        with open("/proc/self/mountinfo") as file:
            for line in file:
                fields = line.split()
                mount = os.path.join(fields[4].replace("\\040", " "), "")
                if folder.startswith(mount) and len(mount) >= len(found):
                    found, kind = mount, fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        return False
    return kind in _LOCAL


def _header_bytes(header: Mapping[str, Any]) -> bytes:
    for dropped in ((), ("argv",), ("argv", "versions", "script")):
        text = json.dumps({key: value for key, value in header.items() if key not in dropped}).encode()
        if len(text) <= HEADER_BYTES - HEAD.size:
            break
    return HEAD.pack(MAGIC, len(text), zlib.crc32(text)) + text
