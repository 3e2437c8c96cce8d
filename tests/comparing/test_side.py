"""How far two sides may be apart and still be of the same kind."""

from dataclasses import replace

import pytest

from forgather_mem.comparing.side import differences
from forgather_mem.telemetry.report import RunReport
from tests.comparing.runs import MIB, on_device, run, side


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (500, 505, False),  # two equal runs differ by that
        (480, 498, False),  # these too: a plain loop of 12 steps on a busy machine
        (500, 530, True),
        (500, 470, True),
    ],
)
def test_a_difference_is_sure_beyond_what_equal_runs_differ_by(before: float, after: float, expected: bool) -> None:
    found = differences(side("a", run(before)), side("b", run(after)), "host")
    assert next(one for one in found if one.name == "peak").is_sure is expected


def test_a_run_that_has_not_read_its_model_is_compared_by_its_activations_alone() -> None:
    short = run(530, activations_peak=106, parameters=0, gradients=0, optimizer=0, held=36)
    for sides in ((run(), short), (short, run())):
        found = differences(*(side("a", one) for one in sides), "host")
        assert [one.name for one in found] == ["peak", "activations", "data workers", "in startup"]


def sure_parts(before: RunReport, after: RunReport) -> dict[str, float]:
    found = differences(side("a", before), side("b", after), "host")
    return {one.name: one.bytes for one in found if one.counted and one.is_sure}


def test_parts_that_are_counted_tensor_by_tensor_are_exact() -> None:
    assert sure_parts(run(), run(optimizer=24.1, gradients=12 + 4 / MIB)) == {"optimizer": 104857, "gradients": 4}


def test_a_second_model_of_one_mib_beside_a_large_one_is_sure() -> None:
    large = {"parameters": 4000, "gradients": 4000, "optimizer": 8000}
    assert sure_parts(run(17000, **large), run(17001, **{**large, "parameters": 4001})) == {"parameters": MIB}
    settings = [{"model.dtype": "float32", "other_models.bytes": text} for text in ("0", str(MIB))]
    assert sure_parts(*(run(17000, settings=told, **large) for told in settings)) == {"other models": MIB}


def test_what_the_parts_leave_of_the_peak_is_no_surer_than_the_peak() -> None:
    # Two equal runs of 12 steps, measured on a busy machine
    first, second = run(577.8), run(567.5)
    told = {one.name: one for one in differences(side("a", first), side("b", second), "host")}
    assert (told["peak"].is_sure, told["other"].is_sure) == (False, False)
    assert told["other"].bytes == pytest.approx(-10.3 * MIB, abs=2)


def test_what_only_one_side_has_is_left_out() -> None:
    bare = replace(run(), peaks=())
    found = differences(side("a", run()), side("b", bare), "host")
    assert "in startup" in [one.name for one in differences(side("a", run()), side("b", run()), "host")]
    assert "in startup" not in [one.name for one in found]


def test_a_side_is_on_the_device_if_it_has_used_one() -> None:
    assert (side("a", on_device(1000)).place, side("b", run()).place) == ("device", "host")
