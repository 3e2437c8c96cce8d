"""The ring: a small file with the last records of a process, still there after the process was killed.

What was written lies in the kernel's page cache: it survives SIGKILL and the out-of-memory killer, not the loss of
the machine. One process writes (`formats.ring_writer`); others read at any time, also while it runs. Nothing here
imports torch.

The file, `ring.rank{r}` in a run's folder, has four parts, all numbers little-endian:

- The header, JSON of `HEADER_BYTES` at most, written once: a `telemetry.report_part.RunHeader`, each key optional.
- The state, written at each step and at each rare phase, with one byte changed at each phase of a step: the last
  sign of life, if no record is newer. Its `end` is "running" until the run is closed; in a file that no process
  writes any more that means: killed.
- `NUM_SAMPLES` records of one step or event each, with the sizes named in `NAMES`; a size that is not read at
  every step has its last reading in each record.
- `NUM_NOTES` findings, their text cut to `NOTE_BYTES`.

A record has its number, counted from 1, at its start and at its end: if the two differ, the writer died in the middle
of it, and the reader skips it. The state has two cells that are written alternately, so that one is always whole.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from forgather_mem.errors import missing
from forgather_mem.files import read_regular
from forgather_mem.formats import ring_writer as layout
from forgather_mem.telemetry.bounds import is_number
from forgather_mem.telemetry.events import EVENT_NUMBERS, PHASE_NUMBERS
from forgather_mem.telemetry.records import Finding, Sample


class RingState(NamedTuple):
    """The last sign of life: time, number of steps, one of `events.PHASES`, and one of `ENDS`."""

    time_s: float
    step: int
    phase: str
    end: str


class Ring(NamedTuple):
    """The contents of a ring file.

    Attributes:
        header: The writer's description of itself.
        state: Its last sign of life.
        samples: The last records, oldest first, `NUM_SAMPLES` at most.
        findings: The last findings, oldest first.
    """

    header: dict[str, object]
    state: RingState
    samples: list[Sample]
    findings: list[Finding]


def ring_files(folder: str | Path) -> dict[int, Path]:
    """The rings in a run's folder by rank."""
    return files_by_rank(folder, r"ring\.rank(\d{1,6})")


def files_by_rank(folder: str | Path, pattern: str) -> dict[int, Path]:
    """The files whose whole name is that pattern, by the rank that its group finds."""
    matches = (re.fullmatch(pattern, name) for name in os.listdir(folder))
    return dict(sorted((int(match[1]), Path(folder, match[0])) for match in matches if match))


def read_ring(path: str | Path) -> Ring:
    """The current contents of a ring, whether or not its writer is alive.

    Raises:
        OSError: if the file can't be read.
        ValueError: if it is not a ring, or its writer died before writing the header.
    """
    data = read_regular(path, layout.FILE_BYTES)
    magic, length, check = layout.HEAD.unpack_from(data.ljust(layout.HEAD.size, b"\0"))
    text = data[layout.HEAD.size : layout.HEAD.size + length]
    is_whole = magic == layout.MAGIC and len(data) == layout.FILE_BYTES and zlib.crc32(text) == check
    header = _loaded(text) if is_whole else None
    if header is None:
        raise ValueError(f"{path}: this is no whole ring of forgather_mem")
    samples, state = _samples(data), _state(data)
    if samples and samples[-1].step > state.step:  # a record is also a sign of life
        state = RingState(samples[-1].time_s, samples[-1].step, "other", state.end)
    return Ring(header, state, samples, _findings(data))


def _state(data: bytes) -> RingState:
    cells = [layout.STATE.unpack_from(data, layout.STATE_AT + cell * layout.CELL_BYTES) for cell in (0, 1)]
    whole = (cell for cell in cells if cell[0] == cell[-1] and is_number(cell[1]) and is_number(cell[2]))
    _, time_s, step, phase, end, _ = max(whole, default=(0, 0.0, 0, 0, 0, 0))
    return RingState(time_s, step, _name_of(PHASE_NUMBERS, phase), _name_of(layout.ENDS, end))


def _samples(data: bytes) -> list[Sample]:
    found: dict[int, Sample] = {}
    for slot in range(layout.NUM_SAMPLES):
        first, time_s, step, epoch, event, device, *values, last = layout.SAMPLE.unpack_from(
            data, layout.SAMPLES_AT + slot * layout.SAMPLE.size
        )
        if first and first == last and is_number(step) and is_number(time_s):
            named = {name: value for name, value in zip(layout.NAMES, values, strict=True) if is_number(value)}
            known_epoch = epoch if is_number(epoch) else None
            found[first] = Sample(
                _name_of(EVENT_NUMBERS, event), step, known_epoch, time_s, named, None if device < 0 else device
            )
    return [found[number] for number in sorted(found)]


def _findings(data: bytes) -> list[Finding]:
    found: dict[int, Finding] = {}
    for slot in range(layout.NUM_NOTES):
        at = layout.NOTES_AT + slot * layout.NOTE_STRIDE
        number, length, check = layout.NOTE.unpack_from(data, at)
        text = data[at + layout.NOTE.size : at + layout.NOTE.size + min(length, layout.NOTE_BYTES)]
        note = _loaded(text) if zlib.crc32(text) == check else None
        kind, step, said = (note.get(name) for name in ("kind", "step", "text")) if note else (None, None, None)
        if isinstance(kind, str) and isinstance(step, int) and is_number(step) and isinstance(said, str):
            found[number] = Finding(kind=kind, step=step, text=said)
    return [found[number] for number in sorted(found)]


def _loaded(text: bytes) -> dict[str, object] | None:
    with missing(ValueError, RecursionError):
        value = json.loads(text)
        return value if isinstance(value, dict) else None
    return None


def _name_of(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else names[0]
