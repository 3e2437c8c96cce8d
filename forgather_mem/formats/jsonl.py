"""Samples and findings as lines of JSON, one file per rank, readable after a crash.

Each line is an object with a "type": "header" (at the start of each process's part and of each file, and once more if
more is known after the first record), "sample", "finding" or "roll-up": all that a report needs of the lines before it,
so that it is made from the last one and what follows. Keys are only ever added.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from forgather_mem.files import open_regular, remove_real, rename_real
from forgather_mem.telemetry.bounds import is_number
from forgather_mem.telemetry.records import Finding, Sample

SCHEMA = 1
# So far from a file's end is a roll-up looked for: 4,096 records of 15 numbers take 2 MiB, and it would be 120 numbers
_LOOK_BACK_BYTES = (2**21, 2**24)


class LogLimits:
    """What is no log of ours.

    Attributes:
        line_bytes: A longer line is none of ours. The longest holds a whole report.
        roll_ups: Looked at from the end, of which all but one were torn, or are none of ours.
        bad_bytes: A file with so much that is no record is none of ours, or a crash has left no more of it;
        least_bad_bytes: each line counts as so much at least.
        names: Values of a record.
        text: Characters of a finding.
        depth: Of a value that is written: deeper than any configuration, and where one ends that contains itself.
    """

    line_bytes = 2**20
    roll_ups = 8
    bad_bytes = 2**20
    least_bad_bytes = 100
    names = 1000
    text = 10_000
    depth = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header before the samples of one process.

    Attributes:
        schema: Version of the line format.
        rank: The process's rank.
        data: All fields of the line: pid, versions, script, ...
    """

    schema: int
    rank: int
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollUp:
    """What came of one process's records so far.

    Attributes:
        header: The fields of its header.
        so_far: The summary, see `forgather_mem.engine.so_far`.
    """

    header: Mapping[str, object]
    so_far: Mapping[str, object]


Record: TypeAlias = Header | Sample | Finding | RollUp


def header_line(rank: int, data: Mapping[str, object]) -> bytes:
    """The first line of a file or of a process's part."""
    return _line({"type": "header", "schema": SCHEMA, "rank": rank, **data})


def sample_line(sample: Sample) -> bytes:
    """One sample as a line; numbers that JSON can't hold become null.

    >>> sample_line(Sample(event="step_end", step=1, epoch=None, time_s=0.5, values={"host/rss_bytes": 2.0}))
    b'{"type":"sample","event":"step_end","step":1,"epoch":null,"time_s":0.5,"values":{"host/rss_bytes":2.0}}\\n'
    """
    event, step, epoch, time_s, values, device = sample
    record = {"type": "sample", "event": event, "step": step, "epoch": epoch, "time_s": time_s, "values": values}
    if device is not None:
        record["device"] = device
    return _line(record)


def finding_line(finding: Finding) -> bytes:
    """One finding as a line."""
    data = dict(finding.data)
    return _line({"type": "finding", "kind": finding.kind, "step": finding.step, "text": finding.text, "data": data})


def roll_up_line(rank: int, header: Mapping[str, object], so_far: Mapping[str, object]) -> bytes:
    """What came of the lines before, with the header's data."""
    return _line({"type": "roll-up", "header": {"schema": SCHEMA, "rank": rank, **header}, "so_far": so_far})


class LogReader:
    """Reads files of such lines one record at a time, in whatever state a crash has left them.

    Args:
        paths: The files, oldest first.
        start: Where in the first of them to begin.

    Attributes:
        given_up: Whether a file had so many lines that are no records that the rest of it was not read.
    """

    def __init__(self, *paths: str | Path, start: int = 0) -> None:
        self._paths, self._start = paths, start
        self.given_up = False

    def __iter__(self) -> Iterator[Record]:
        """The records of all files in order.

        Raises:
            OSError: a file can't be read, or is no regular file.
        """
        for number, path in enumerate(self._paths):
            bad_bytes = 0
            with open_regular(path) as file:
                file.seek(0 if number else self._start)
                for line in iter(partial(file.readline, LogLimits.line_bytes), b""):
                    record = _parse(line)
                    if record is not None:
                        yield record
                        continue
                    bad_bytes += max(len(line), LogLimits.least_bad_bytes)
                    if bad_bytes > LogLimits.bad_bytes:
                        self.given_up = True
                        break


def roll_ups(path: str | Path) -> Iterator[tuple[RollUp, int]]:
    """The roll-ups near the end of a file, the last one first, and where the record after each begins.

    Raises:
        OSError: if the file can't be read.
    """
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        for back in _LOOK_BACK_BYTES:
            start = max(0, size - back)
            file.seek(start)
            data = file.read(back)
            at = len(data)
            for _ in range(LogLimits.roll_ups):
                if (at := data.rfind(b"\n" + _ROLL_UP, 0, at)) < 0:  # the first line of a file is a header
                    break
                end = data.find(b"\n", at + 1, at + LogLimits.line_bytes) + 1
                record = _parse(data[at:end])
                if isinstance(record, RollUp):
                    yield record, start + end
            if not start:
                break


def log_files(folder: str | Path) -> dict[int, list[Path]]:
    """The logs in a run's folder by rank, each with its rotated files first, oldest first."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for name in os.listdir(folder):
        match = re.fullmatch(r"memory\.rank(\d{1,6})\.jsonl(?:\.(\d{1,6}))?", name)
        if match:
            found.setdefault(int(match[1]), []).append((-int(match[2] or 0), Path(folder, name)))
    return {rank: [path for _, path in sorted(files)] for rank, files in sorted(found.items())}


def rotate(path: Path, keep: int) -> None:
    """Rename the file to `<name>.1`, an older one to `<name>.2`, and so on; those beyond `keep` are deleted.

    Raises:
        OSError: if a file can't be renamed.
    """
    for number in range(keep, 0, -1):
        older = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        if older.exists():
            rename_real(older, f"{path.name}.{number}")
    if keep == 0:
        remove_real(path)


def is_torn(path: Path) -> bool:
    """Whether a file's last line is incomplete, so that appending needs a newline first.

    Raises:
        OSError: if the file can't be read.
    """
    if not path.is_file() or not path.stat().st_size:  # reading a pipe would block
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _line(record: Mapping[str, object]) -> bytes:
    try:
        return (_ENCODE(record) + "\n").encode("ascii")
    except ValueError:  # NaN or infinite
        return (_ENCODE(plain(record)) + "\n").encode("ascii")


def plain(value: object, depth: int = 0) -> object:
    """The value in a form that JSON can hold."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth < LogLimits.depth:
        if isinstance(value, Mapping):
            return {str(key): plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [plain(item, depth + 1) for item in value]
        if hasattr(value, "isoformat") and not isinstance(value, type):  # a date
            return value.isoformat()
        if hasattr(value, "tolist") and not isinstance(value, type):  # numpy and torch, of any shape
            return plain(value.tolist(), depth + 1)
    return str(value)


_NUMBERS = frozenset((int, float))
_ROLL_UP = b'{"type":"roll-up",'
_DECODE = json.JSONDecoder().raw_decode
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=plain).encode


def _parse(line: bytes) -> Record | None:
    """The record of a line; None for anything else, whoever has written it."""
    try:
        text = line.decode().strip()
        record, end = _DECODE(text)
        if end != len(text):
            return None
        kind = record["type"]
        if kind == "sample":
            return _sample(record)
        if kind == "finding":
            return _finding(record)
        if kind == "roll-up" and isinstance(record["header"], dict) and isinstance(record["so_far"], dict):
            return RollUp(header=record["header"], so_far=record["so_far"])
        return Header(schema=record["schema"], rank=record["rank"], data=record) if kind == "header" else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _sample(record: Mapping[str, Any]) -> Sample | None:
    event, step, epoch, time_s = record["event"], record["step"], record["epoch"], record["time_s"]
    device = record.get("device")
    values = record["values"]
    if not _NUMBERS.issuperset(map(type, values.values())):
        values = {name: float(value) for name, value in values.items() if value is not None}
    good = (
        isinstance(event, str)
        and is_number(step)
        and (epoch is None or is_number(epoch))
        and is_number(time_s)
        and (device is None or (isinstance(device, int) and is_number(device)))
        and len(values) <= LogLimits.names
        and (math.isfinite(sum(values.values())) or all(map(math.isfinite, values.values())))
    )
    return Sample(event, int(step), epoch, float(time_s), values, device) if good else None


def _finding(record: Mapping[str, Any]) -> Finding | None:
    kind, step, text, data = record["kind"], record["step"], record["text"], record["data"]
    good = isinstance(kind, str) and is_number(step) and isinstance(text, str) and isinstance(data, dict)
    return Finding(kind=kind, step=int(step), text=text[: LogLimits.text], data=data) if good else None
