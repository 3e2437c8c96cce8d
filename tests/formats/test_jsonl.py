"""JSONL logs: what is written is read, whatever a crash has done to the file."""

import json
import math
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgather_mem.formats.jsonl import Header, LogReader, finding_line, header_line, is_torn, log_files, sample_line
from forgather_mem.telemetry.records import Finding, Sample

NAMES = st.text(min_size=1, max_size=12)
SAMPLES = st.builds(
    Sample, event=st.sampled_from(["step_end", "evaluate"]), step=st.integers(0, 2**40),
    epoch=st.none() | st.floats(0, 100), time_s=st.floats(0, 2e9),
    values=st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False)),
    device=st.none() | st.integers(0, 7),
)  # fmt: skip
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
FINDINGS = st.builds(
    Finding, kind=NAMES, step=st.integers(0, 2**40), text=st.text(), data=st.dictionaries(NAMES, PLAIN, max_size=3)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(SAMPLES | FINDINGS, max_size=8))
def test_every_record_comes_back_as_it_was(tmp_path: Path, records: list[Sample | Finding]) -> None:
    lines = [sample_line(r) if isinstance(r, Sample) else finding_line(r) for r in records]
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") and line.isascii() for line in lines)
    (tmp_path / "log").write_bytes(b"".join(lines))
    assert list(LogReader(tmp_path / "log")) == records


def test_garbage_is_counted_and_a_torn_line_is_told(tmp_path: Path) -> None:
    sample = Sample(event="step_end", step=1, epoch=None, time_s=1.0, values={"host/rss_bytes": 5.0})
    line = sample_line(sample)
    garbage = [
        b"\x00\xff\x00\n", b"{}\n", b"[1, 2]\n", b"null\n", b'{"type": "sample"}\n', b'{"type": "other"}\n', b"\n",
    ]  # fmt: skip
    path = tmp_path / "log"
    path.write_bytes(header_line(3, {"pid": 7}) + line + b"".join(garbage) + line + line[:-9])
    header, *samples = records = list(LogReader(path))
    assert len(records) == 3
    assert isinstance(header, Header)
    assert (header.schema, header.rank, header.data["pid"]) == (1, 3, 7)
    assert samples == [sample, sample]
    assert is_torn(path)


def test_a_last_line_that_only_lacks_its_end_still_counts(tmp_path: Path) -> None:
    sample = Sample(event="step_end", step=1, epoch=None, time_s=1.0, values={})
    path = tmp_path / "log"
    path.write_bytes(sample_line(sample)[:-1])
    assert list(LogReader(path)) == [sample]


def test_numbers_that_json_cannot_hold_become_null_and_are_no_reading() -> None:
    values = {"a": math.nan, "b": math.inf, "c": 1.0}
    line = sample_line(Sample(event="step_end", step=1, epoch=None, time_s=1.0, values=values))
    assert json.loads(line)["values"] == {"a": None, "b": None, "c": 1.0}
    line = finding_line(Finding(kind="leak", step=1, text="", data={"low": -math.inf, "list": [1.0, math.nan], "x": 2}))
    assert json.loads(line)["data"] == {"low": None, "list": [1.0, None], "x": 2}


def test_numbers_of_other_libraries_are_written_as_numbers() -> None:
    import numpy as np

    values = {"a": np.float32(1.5), "b": np.int64(3)}
    line = sample_line(Sample(event="step_end", step=1, epoch=None, time_s=1.0, values=values))  # type: ignore[arg-type]
    assert json.loads(line)["values"] == {"a": 1.5, "b": 3.0}


def test_logs_are_found_by_rank_oldest_part_first(tmp_path: Path) -> None:
    for name in ("memory.rank0.jsonl", "memory.rank0.jsonl.2", "memory.rank0.jsonl.1", "memory.rank10.jsonl", "other"):
        (tmp_path / name).touch()
    found = {rank: [path.name for path in paths] for rank, paths in log_files(tmp_path).items()}
    assert found == {
        0: ["memory.rank0.jsonl.2", "memory.rank0.jsonl.1", "memory.rank0.jsonl"],
        10: ["memory.rank10.jsonl"],
    }


def test_a_reader_gives_up_what_is_no_log(tmp_path: Path) -> None:
    path, line = tmp_path / "memory.rank0.jsonl", sample_line(Sample("step_end", 1, None, 1.0, {}))
    path.write_bytes(line + b"x\n" * 20_000 + line)
    reader = LogReader(path)
    assert len(list(reader)) == 1
    assert reader.given_up
