"""Lines that differ in their numbers alone are read as JSON would read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forgather_mem.formats.jsonl import LogReader, sample_line
from forgather_mem.formats.like_lines import LikeLines, Rows
from forgather_mem.telemetry.records import Sample

NAMES = ("host/rss_bytes", 'a "quoted", {odd} name', "\u00e9")


def sample(step: int, epoch: float | None = None) -> Sample:
    return Sample("step_end", step, epoch, 1.7e9 + step / 7, dict.fromkeys(NAMES, step * 1e-07 - 3))


def without_epoch(records: list[object]) -> list[object]:
    return [one._replace(epoch=None) if isinstance(one, Sample) else one for one in records]


def read(folder: Path, *lines: bytes) -> tuple[LogReader, list[object]]:
    """What is read of a log that has taught the shape, and these lines at its end."""
    path = folder / "log"
    taught = [sample_line(sample(step)) for step in range(500)]  # more than one block
    path.write_bytes(b"".join([*taught, *lines]))
    reader = LogReader(path)
    found: list[object] = []
    for one in reader.runs(lambda name: True):
        found += one.samples() if isinstance(one, Rows) else [one]
    assert found[:500] == [sample(step) for step in range(500)]
    return reader, found[500:]


@pytest.mark.parametrize("epoch", [None, 0.25])
def test_like_lines_come_in_one_piece_and_as_they_were(tmp_path: Path, epoch: float | None) -> None:
    written = [sample(step, epoch) for step in range(2300)]
    (tmp_path / "log").write_bytes(b"".join(map(sample_line, written)))
    pieces = list(LogReader(tmp_path / "log").runs(lambda name: True))
    rows = [one for one in pieces if isinstance(one, Rows)]
    assert len(rows) < 10
    assert sum(len(one.steps) for one in rows) > 1900
    in_rows = [one for piece in rows for one in piece.samples()]
    assert in_rows == without_epoch(written[-len(in_rows) :])
    assert list(LogReader(tmp_path / "log")) == written


def test_numbers_that_nobody_wants_are_not_read() -> None:
    like = LikeLines(NAMES[1:2].__contains__)
    for step in range(70):
        like.learn(sample(step))
    (rows,) = like.split(sample_line(sample(1)) + sample_line(sample(2)))
    assert isinstance(rows, Rows)
    assert (list(rows.steps), rows.shape.names) == ([1, 2], NAMES[1:2])
    assert rows.columns == [[sample(1).values[NAMES[1]], sample(2).values[NAMES[1]]]]


def test_lines_of_several_shapes_and_others_stay_in_their_order() -> None:
    like = LikeLines(lambda name: True)
    shapes = [sample(0), sample(0)._replace(event="save"), sample(0)._replace(values={"mine": 1.0})]
    for one in shapes:
        for _ in range(70):
            like.learn(one)
    written: list[Sample | bytes] = [*shapes, b"\n", *shapes[::-1], b"no record\n", *[shapes[1]] * 3, b'{"type":"sam']
    pieces = like.split(b"".join(sample_line(one) if isinstance(one, Sample) else one for one in written))
    found: list[Sample | bytes] = []
    for piece in pieces:
        found += piece.samples() if isinstance(piece, Rows) else [piece]
    assert found == written
    assert max(len(piece.steps) for piece in pieces if isinstance(piece, Rows)) == 3


def test_an_epoch_may_come_and_go(tmp_path: Path) -> None:
    written = [sample(step, epoch) for step, epoch in enumerate((None, 0.5, 0.6, None, 0.7))]
    assert without_epoch(read(tmp_path, *map(sample_line, written))[1]) == without_epoch([*written])


@pytest.mark.parametrize("number", [b"1-2", b"1e999", b"-", b"9e18"])
def test_what_is_no_number_of_a_machine_is_judged_as_json_judges_it(tmp_path: Path, number: bytes) -> None:
    odd = sample_line(sample(1)).replace(b'"step":1', b'"step":' + number)
    reader, found = read(tmp_path, sample_line(sample(2)), odd, sample_line(sample(3)))
    assert (found, reader.bad_lines) == ([sample(2), sample(3)], 1)


def test_a_line_with_something_more_is_read_by_json(tmp_path: Path) -> None:
    record = json.loads(sample_line(sample(4)))
    _, found = read(tmp_path, json.dumps({**record, "device": 1, "new": 2}).encode() + b"\n")
    assert found == [sample(4)._replace(device=1)]


def test_the_last_line_may_have_no_end(tmp_path: Path) -> None:
    reader, found = read(tmp_path, sample_line(sample(4)).rstrip(b"\n"))
    assert (found, reader.torn) == ([sample(4)], False)
