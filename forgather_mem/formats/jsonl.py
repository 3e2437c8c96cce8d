"""How are samples and findings written as lines of JSON, one file a rank, and read back after a crash?

Each line is an object with a "type": "header" (one at the beginning of every process's or file's part),
"sample" or "finding". Keys are only ever added.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forgather_mem.sample import Finding, Sample

SCHEMA = 1
# A longer line is none of ours; reading it whole could need more memory than there is.
_MAX_LINE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What stands before the samples of one process.

    Attributes:
        schema: Version of the lines' format.
        rank: The process's number.
        data: All that the line says: pid, versions, script, ...
    """

    schema: int
    rank: int
    data: Mapping[str, Any]


def header_line(rank: int, data: Mapping[str, Any]) -> bytes:
    """The first line of a file's or process's part."""
    return _line({"type": "header", "schema": SCHEMA, "rank": rank, **data})


def sample_line(sample: Sample) -> bytes:
    """One sample as a line; numbers that JSON can't hold are left out.

    >>> sample_line(Sample(event="step_end", step=1, epoch=None, time_s=0.5, values={"host/rss_bytes": 2.0}))
    b'{"type":"sample","event":"step_end","step":1,"epoch":null,"time_s":0.5,"values":{"host/rss_bytes":2.0}}\\n'
    """
    record = {
        "type": "sample",
        "event": sample.event,
        "step": sample.step,
        "epoch": sample.epoch,
        "time_s": sample.time_s,
        "values": sample.values,
    }
    if sample.device is not None:
        record["device"] = sample.device
    return _line(record)


def finding_line(finding: Finding) -> bytes:
    """One finding as a line."""
    data = dict(finding.data)
    return _line({"type": "finding", "kind": finding.kind, "step": finding.step, "text": finding.text, "data": data})


class LogReader:
    """Reads files of such lines one record at a time, whatever state a crash has left them in.

    Attributes:
        bad_lines: Lines passed over so far because they are no records.
        torn: Whether the last line of a file has no end.
    """

    def __init__(self, *paths: str | Path) -> None:
        self._paths = [Path(path) for path in paths]
        self.bad_lines = 0
        self.torn = False

    def __iter__(self) -> Iterator[Header | Sample | Finding]:
        """The records of all files in order.

        Raises:
            OSError: a file can't be read.
        """
        for path in self._paths:
            with path.open("rb") as file:
                for line in iter(lambda: file.readline(_MAX_LINE_BYTES), b""):
                    record = _parse(line)
                    if record is not None:
                        yield record
                    elif not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                        self.torn = True
                    elif line.strip():
                        self.bad_lines += 1


def last_record(path: str | Path) -> Header | Sample | Finding | None:
    """What stands in a file's last line, without reading the lines before; None when that is no record.

    Raises:
        OSError: the file can't be read.
    """
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MAX_LINE_BYTES))
        return _parse(file.read().rstrip(b"\n").rpartition(b"\n")[2])


def log_files(folder: str | Path) -> dict[int, list[Path]]:
    """The logs in a run's folder by rank, each with the files that were rotated away first, oldest first."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for path in Path(folder).iterdir():
        match = re.fullmatch(r"memory\.rank(\d+)\.jsonl(?:\.(\d+))?", path.name)
        if match:
            found.setdefault(int(match[1]), []).append((-int(match[2] or 0), path))
    return {rank: [path for _, path in sorted(files)] for rank, files in sorted(found.items())}


def rotate(path: Path, keep: int) -> None:
    """Rename the file to `<name>.1`, an older one to `<name>.2`, and so on; the oldest beyond `keep` goes.

    Raises:
        OSError: a file can't be renamed.
    """
    for number in range(keep, 0, -1):
        older = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number}"))
    if keep == 0:
        path.unlink()


def is_torn(path: Path) -> bool:
    """Whether a file's last line has no end, so that what is appended needs a new line first.

    Raises:
        OSError: the file can't be read.
    """
    if not path.is_file() or not path.stat().st_size:  # reading a pipe would wait
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        return (_ENCODE(record) + "\n").encode("ascii")
    except ValueError:  # not a number, or infinite
        return (_ENCODE(_finite(record)) + "\n").encode("ascii")


def _plain(value: object) -> object:
    """A number of another library as a float; anything else as its text."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else None


_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain).encode


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(v) for key, v in value.items() if not _is_infinite(v)}
    if isinstance(value, list | tuple):
        return [None if _is_infinite(v) else _finite(v) for v in value]
    return value


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _parse(line: bytes) -> Header | Sample | Finding | None:
    try:
        record = json.loads(line)
        kind = record["type"]
        if kind == "sample":
            return _sample(record)
        if kind == "finding":
            return Finding(kind=record["kind"], step=record["step"], text=record["text"], data=record["data"])
        return Header(schema=record["schema"], rank=record["rank"], data=record) if kind == "header" else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _sample(record: Mapping[str, Any]) -> Sample:
    return Sample(
        event=record["event"],
        step=int(record["step"]),
        epoch=record["epoch"],
        time_s=float(record["time_s"]),
        values={str(name): float(value) for name, value in record["values"].items()},
        device=record.get("device"),
    )
