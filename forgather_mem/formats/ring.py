"""What is still there of a process that was killed? A small file, mapped into its memory, that it wrote to last.

A store into a mapped file needs no system call, and what is stored belongs to the kernel: it survives SIGKILL
and the out-of-memory killer, not the loss of the machine. One process writes; others read at any time, also
while it runs. Nothing here imports torch. What writes it is `formats.ring_writer`; on network file systems it
uses system calls instead, since a store that fails there would end the process.

The file, `ring.rank{r}` in a run's folder, has four parts, all numbers little-endian:

- The header, JSON of `HEADER_BYTES` at most, written once. Its keys, each of which may lack: `rank`, `world_size`,
  `pid`, `script`, `argv`, `started_s`, `versions`, `limit_bytes`, `limit_kind`, `step` (steps done at the
  beginning), `kills` (the kernel's counter of out-of-memory kills at the beginning, see `cgroups.kill_counter`).
- The state, written at each step and at each rare phase, with one byte changed at each phase of a step: the last
  sign of life, if no record is newer. Its `end` is "running" until the run closes in order; in a file that nobody
  writes any more that means: killed.
- `NUM_SAMPLES` records of one step or event each, with the sizes named in `NAMES`; a size that is not read at
  every step stands in each record as it was read last.
- `NUM_NOTES` findings, their text cut to `NOTE_BYTES`.

A record has its number, counted from 1, at its front and at its back: where the two differ, the writer died in
the middle of it, and the reader passes it over. The state lies in two cells that are written in turn, so that
one is always whole.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from forgather_mem.formats import ring_writer as layout
from forgather_mem.sample import Finding, Sample


class RingState(NamedTuple):
    """The last sign of life: when, after how many steps, in which of `PHASES`, and one of `ENDS`."""

    time_s: float
    step: int
    phase: str
    end: str


class Ring(NamedTuple):
    """A ring as read back.

    Attributes:
        header: What the writer said of itself.
        state: Its last sign of life.
        samples: The last records, oldest first, `NUM_SAMPLES` at most.
        findings: The last findings, oldest first.
        torn: Records and findings that were being written when the writer died.
    """

    header: dict[str, Any]
    state: RingState
    samples: list[Sample]
    findings: list[Finding]
    torn: int


def ring_files(folder: str | Path) -> dict[int, Path]:
    """The rings in a run's folder by rank."""
    found = {}
    for path in Path(folder).iterdir():
        match = re.fullmatch(r"ring\.rank(\d+)", path.name)
        if match:
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def read_ring(path: str | Path) -> Ring:
    """What a ring holds now, whether its writer lives or not.

    Raises:
        OSError: when the file can't be read.
        ValueError: when it is no ring, or one whose writer died before it had written the header.
    """
    with open(path, "rb") as file:
        data = file.read(layout.FILE_BYTES + 1)
    magic, length, check = layout.HEAD.unpack_from(data.ljust(layout.HEAD.size, b"\0"))
    text = data[layout.HEAD.size : layout.HEAD.size + length]
    if magic != layout.MAGIC or len(data) != layout.FILE_BYTES or zlib.crc32(text) != check:
        raise ValueError(f"{path}: this is no whole ring of forgather_mem")
    samples, torn_samples = _samples(data)
    findings, torn_findings = _findings(data)
    state = _state(data)
    if samples and samples[-1].step > state.step:  # a record is a sign of life as well
        state = RingState(samples[-1].time_s, samples[-1].step, "other", state.end)
    return Ring(json.loads(text), state, samples, findings, torn_samples + torn_findings)


def _state(data: bytes) -> RingState:
    cells = [layout.STATE.unpack_from(data, layout.STATE_AT + cell * layout.CELL_BYTES) for cell in (0, 1)]
    _, time_s, step, phase, end, _ = max((cell for cell in cells if cell[0] == cell[-1]), default=(0,) * 6)
    return RingState(time_s, step, _name_of(layout.PHASES, phase), _name_of(layout.ENDS, end))


def _samples(data: bytes) -> tuple[list[Sample], int]:
    found, torn = [], 0
    for slot in range(layout.NUM_SAMPLES):
        first, time_s, step, epoch, event, device, *values, last = layout.SAMPLE.unpack_from(
            data, layout.SAMPLES_AT + slot * layout.SAMPLE.size
        )
        if first != last:
            torn += 1
        elif first:
            named = {name: value for name, value in zip(layout.NAMES, values, strict=True) if value == value}
            known_epoch = epoch if epoch == epoch else None
            sample = Sample(
                _name_of(layout.EVENTS, event), step, known_epoch, time_s, named, None if device < 0 else device
            )
            found.append((first, sample))
    return [sample for _, sample in sorted(found, key=lambda pair: pair[0])], torn


def _findings(data: bytes) -> tuple[list[Finding], int]:
    found, torn = [], 0
    for slot in range(layout.NUM_NOTES):
        at = layout.NOTES_AT + slot * layout.NOTE_STRIDE
        number, length, check = layout.NOTE.unpack_from(data, at)
        text = data[at + layout.NOTE.size : at + layout.NOTE.size + min(length, layout.NOTE_BYTES)]
        if not number and not any(text):
            continue
        if zlib.crc32(text) != check:
            torn += 1
            continue
        note = json.loads(text)
        found.append((number, Finding(kind=note["kind"], step=note["step"], text=note["text"])))
    return [finding for _, finding in sorted(found, key=lambda pair: pair[0])], torn


def _name_of(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else names[0]
