"""The JSONL sink: one file a rank, rotated, continued, readable by anybody."""

import json
import pickle
from pathlib import Path

import pytest

from forgather_mem.formats.jsonl import Header, LogReader, RollUp, log_files
from forgather_mem.sinks import JsonlSink, jsonl
from forgather_mem.telemetry.records import Finding, Sample
from tests.sinks.plain_run import PlainRun, begun
from tests.sinks.written import sample


def train(sink: JsonlSink, run: PlainRun, *steps: int) -> None:
    sink.begin(run)
    for step in steps:
        sink.write(sample(step))
    sink.end(run)


def test_each_rank_has_a_file_that_begins_with_a_header(tmp_path: Path) -> None:
    for rank in (0, 1):
        sink = JsonlSink()
        sink.begin(run := PlainRun(folder=tmp_path / "out", rank=rank, world_size=2))
        assert not (tmp_path / "out").exists() or rank
        sink.write(sample(1))
        sink.tell(Finding(kind="leak", step=1, text="It grows.", data={"bytes_per_step": 3.0}))
        sink.end(run)
    for rank in (0, 1):
        path = tmp_path / "out" / f"memory.rank{rank}.jsonl"
        header, first, finding = LogReader(path)
        assert isinstance(header, Header)
        assert header.rank == rank
        assert header.data["world_size"] == 2
        assert {"python", "forgather_mem"} <= header.data["versions"].keys()
        assert first == sample(1)
        assert finding == Finding(kind="leak", step=1, text="It grows.", data={"bytes_per_step": 3.0})
        assert all(json.loads(line) for line in path.read_text().splitlines())


def test_what_came_of_the_records_so_far_stands_behind_each_4096th(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "ROLL_UP_RECORDS", 3)
    sink = JsonlSink()
    sink.begin(run := PlainRun(folder=tmp_path))
    for step in range(1, 8):
        run.step = step
        sink.write(sample(step))
    sink.end(run)
    header, *records = LogReader(tmp_path / "memory.rank0.jsonl")
    assert isinstance(header, Header)
    rolled_up = [record for record in records if isinstance(record, RollUp)]
    assert [records.index(record) for record in rolled_up] == [3, 7]
    assert [record.so_far for record in rolled_up] == [{"step": 3}, {"step": 6}]
    assert rolled_up[0].header.keys() == header.data.keys() - {"type"}


def test_a_path_of_ones_own_has_the_rank_in_it_on_other_ranks(tmp_path: Path) -> None:
    for rank in (0, 3):
        train(JsonlSink(tmp_path / "memory.jsonl"), PlainRun(rank=rank), 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.jsonl", "memory.rank3.jsonl"]


def test_a_resumed_run_continues_the_file_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    for steps in ((1, 2), (3,)):
        train(JsonlSink(path), PlainRun(), *steps)
        path.write_bytes(path.read_bytes() + b'{"type":"sam')
    found = list(LogReader(path))
    assert [record.step for record in found if isinstance(record, Sample)] == [1, 2, 3]
    assert sum(isinstance(record, Header) for record in found) == 2


def test_a_file_that_has_grown_is_rotated_and_each_part_has_a_header(tmp_path: Path) -> None:
    sink = JsonlSink(max_bytes=4096, keep=2)
    train(sink, PlainRun(folder=tmp_path), *range(200))
    files = log_files(tmp_path)[0]
    assert [path.name for path in files] == [f"memory.rank0.jsonl{end}" for end in (".2", ".1", "")]
    assert all(path.stat().st_size < 4096 + 200 for path in files)
    assert all(isinstance(next(iter(LogReader(path))), Header) for path in files)
    steps = [record.step for record in LogReader(*files) if isinstance(record, Sample)]
    assert steps == list(range(steps[0], 200))
    assert sink.problems() is None


def test_without_a_folder_nothing_is_written_and_the_report_says_so() -> None:
    sink = begun(JsonlSink())
    sink.write(sample(1))
    assert "give JsonlSink(path=...)" in (sink.problems() or "")
    assert sink.file is None


def test_nothing_is_written_outside_of_trainings_and_a_sink_can_be_pickled(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "log.jsonl")
    sink.write(sample(0))
    sink.begin(PlainRun())
    sink.write(sample(1))
    copy = pickle.loads(pickle.dumps(sink))
    sink.end(PlainRun())
    sink.write(sample(2))
    train(copy, PlainRun(), 3)
    assert [record.step for record in LogReader(tmp_path / "log.jsonl") if isinstance(record, Sample)] == [1, 3]


@pytest.mark.parametrize(("arguments", "message"), [({"max_bytes": 10}, "max_bytes=10"), ({"keep": -1}, "keep=-1")])
def test_wrong_values_are_refused_at_once(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JsonlSink(**arguments)  # type: ignore[arg-type]


def test_only_a_file_that_is_called_json_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in .jsonl or .json"):
        JsonlSink(tmp_path / ".bashrc")
