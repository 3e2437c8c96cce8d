"""From which step on two runs are apart."""

from collections.abc import Callable
from pathlib import Path

import pytest

from forgather_mem.comparing.comparison import comparison_of
from forgather_mem.comparing.side import Side
from forgather_mem.comparing.since import curves_of, step_apart
from forgather_mem.formats.jsonl import header_line, sample_line
from forgather_mem.sinks import TensorBoardSink
from forgather_mem.telemetry.records import Sample
from tests.comparing.runs import MIB, run, side
from tests.sinks.plain_run import PlainRun

PEAK = "host/rss_peak_bytes"


def records(size_at: Callable[[int], float], steps: int = 400, name: str = PEAK) -> list[Sample]:
    return [Sample("step_end", step, None, float(step), {name: size_at(step) * MIB}) for step in range(1, steps + 1)]


def log(folder: Path, size_at: Callable[[int], float], **changes: int) -> Path:
    folder.mkdir()
    lines = [header_line(0, {"pid": 1}), *map(sample_line, records(size_at, **changes))]
    (folder / "memory.rank0.jsonl").write_bytes(b"".join(lines))
    return folder


def apart(before: Path, after: Path, size: float, part: str = "activations") -> int | None:
    return step_apart(curves_of(before), curves_of(after), part, "host", size * MIB)


@pytest.mark.parametrize(
    ("after", "size", "expected"),
    [
        (lambda step: 500 + 40 * (step > 120), 40, 121),
        (lambda step: 500 + (step if step <= 300 else 300), 300, None),  # it grows
        (lambda step: 500 + min(40, max(0, 2 * (step - 200))), 40, 210),  # at half of it
        (lambda step: 540, 40, None),  # from the beginning
        (lambda step: 500 + 40 * (step > 2), 40, None),
        (lambda step: 500 + 40 * (step == 390), 40, 390),  # a peak stays
        (lambda step: 500 + 10 * (step > 120), 40, None),  # it is something else that makes up the 40
        (lambda step: 500, 0, None),
    ],
    ids=["a jump", "a slope", "a short slope", "always", "early", "a spike", "too little", "equal"],
)
def test_of_a_jump_the_step_is_that_at_which_half_of_the_difference_has_come(
    tmp_path: Path, after: Callable[[int], float], size: float, expected: int | None
) -> None:
    before, later = log(tmp_path / "a", lambda step: 500), log(tmp_path / "b", after)
    assert apart(before, later, size) == expected
    assert apart(later, before, -size) == expected, "what has gone, too"


def test_steps_that_only_one_run_has_done_are_left_out(tmp_path: Path) -> None:
    before = log(tmp_path / "a", lambda step: 500, steps=200)
    assert apart(before, log(tmp_path / "b", lambda step: 500 + 40 * (step > 250)), 40) is None
    assert apart(before, log(tmp_path / "c", lambda step: 500 + 40 * (step > 150)), 40) == 151


def test_a_part_has_its_own_curve(tmp_path: Path) -> None:
    before = log(tmp_path / "a", lambda step: 24, name="tensors/optimizer_bytes")  # type: ignore[arg-type]
    after = log(tmp_path / "b", lambda step: 24 + 24 * (step > 100), name="tensors/optimizer_bytes")  # type: ignore[arg-type]
    assert apart(before, after, 24, "optimizer") == 101
    assert apart(before, after, 24) is None


def test_of_a_long_log_a_part_is_read_and_the_step_is_near(tmp_path: Path) -> None:
    before = log(tmp_path / "a", lambda step: 500, steps=30_000)
    after = log(tmp_path / "b", lambda step: 500 + 40 * (step > 20_000), steps=30_000)
    curve = curves_of(after)[PEAK]
    assert 1_000 < len(curve) < 3_000
    assert curve[-1][0] == 30_000
    assert apart(before, after, 40) == pytest.approx(20_001, abs=40)


def test_curves_of_tensorboard_do_as_well(tmp_path: Path) -> None:
    for name, more in (("a", 0), ("b", 40)):
        sink = TensorBoardSink(logging_dir=str(tmp_path / name))
        sink.begin(PlainRun())
        for sample in records(lambda step, more=more: 500 + more * (step > 120)):  # type: ignore[misc]
            sink.write(sample)
        sink.end(None)  # type: ignore[arg-type]
    assert apart(tmp_path / "a", tmp_path / "b", 40) == 121


def test_a_comparison_says_it(tmp_path: Path) -> None:
    before, after = log(tmp_path / "a", lambda step: 500), log(tmp_path / "b", lambda step: 500 + 80 * (step > 120))
    old, new = side("a", run()), side("b", run(580, held=80))
    found = comparison_of(type(old)("a", old.reports, before), type(new)("b", new.reports, after))
    assert [(one.part, one.since_step) for one in found.grown] == [("held", 121)]


def test_no_step_is_said_of_what_is_counted_in_the_first_steps_nor_where_the_peak_can_not_tell(tmp_path: Path) -> None:
    before, after = log(tmp_path / "a", lambda step: 500), log(tmp_path / "b", lambda step: 500 + 80 * (step > 120))

    def since(peak: float, **sizes: float) -> list[tuple[str, int | None]]:
        old, new = Side("a", [run(held=100)], before), Side("b", [run(peak, **{"held": 100, **sizes})], after)
        return [(one.part, one.since_step) for one in comparison_of(old, new).grown]

    assert since(580, activations_peak=156) == [("activations", None)]
    assert since(580, held=180) == [("held", 121)]
    assert since(510, held=180) == [("held", None)]


def test_of_a_few_readings_a_step_is_not_said(tmp_path: Path) -> None:
    before = log(tmp_path / "a", lambda step: 500, steps=5)
    assert apart(before, log(tmp_path / "b", lambda step: 500 + 40 * (step > 3), steps=5), 40) is None


def test_what_can_not_be_read_has_no_curve(tmp_path: Path) -> None:
    assert curves_of(tmp_path / "nowhere") == {}
