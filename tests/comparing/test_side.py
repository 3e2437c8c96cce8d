"""How far two sides may be apart and still be of the same kind."""

from dataclasses import replace

import pytest

from forgather_mem.comparing.side import Difference, Side, differences
from forgather_mem.telemetry.report import RunReport
from tests.comparing.runs import MIB, on_device, run


def told(before: RunReport, after: RunReport) -> dict[str, Difference]:
    return {one.name: one for one in differences(Side("a", [before]), Side("b", [after]), "host")}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([500], [505], False),  # two equal runs differ by that
        ([480], [498], False),  # these too: a plain loop of 12 steps on a busy machine
        ([500], [530], True),
        ([500], [470], True),
        ([500, 501, 500], [506, 507, 506], True),  # what one run can't tell, three can
        ([500, 540, 505], [520, 500, 545], False),  # these say themselves how far they are apart
        ([500, 540], [560, 500], False),
        ([500, 500, 500], [500, 500, 500], False),
    ],
)
def test_a_difference_is_sure_beyond_what_equal_runs_differ_by(
    before: list[float], after: list[float], expected: bool
) -> None:
    found = differences(Side("a", [*map(run, before)]), Side("b", [*map(run, after)]), "host")
    assert [one.is_sure for one in found if one.name == "peak"] == [expected]


def sure_parts(before: RunReport, after: RunReport) -> dict[str, float]:
    return {name: one.bytes for name, one in told(before, after).items() if one.counted and one.is_sure}


def test_parts_that_are_counted_tensor_by_tensor_are_exact() -> None:
    assert sure_parts(run(), run(optimizer=24.1, gradients=12 + 4 / MIB)) == {"optimizer": 104857, "gradients": 4}


def test_a_second_model_of_one_mib_beside_a_large_one_is_sure() -> None:
    large = {"parameters": 4000, "gradients": 4000, "optimizer": 8000}
    assert sure_parts(run(17000, **large), run(17001, **{**large, "parameters": 4001})) == {"parameters": MIB}
    settings = [{"model.dtype": "float32", "other_models.bytes": text} for text in ("0", str(MIB))]
    assert sure_parts(*(run(17000, settings=known, **large) for known in settings)) == {"other models": MIB}


def test_what_the_parts_leave_of_the_peak_is_no_surer_than_the_peak() -> None:
    # Two equal runs of 12 steps, measured on a busy machine
    found = told(run(577.8), run(567.5))
    assert (found["peak"].is_sure, found["other"].is_sure) == (False, False)
    assert found["other"].bytes == pytest.approx(-10.3 * MIB, abs=2)


def test_what_only_one_side_has_is_left_out() -> None:
    assert "in startup" in told(run(), run())
    assert "in startup" not in told(run(), replace(run(), peaks=()))


def test_a_side_is_on_the_device_only_if_all_its_runs_are() -> None:
    both = Side("a", [on_device(1000), on_device(1010)])
    assert (both.place, Side("b", [on_device(1000), run()]).place) == ("device", "host")
    assert both.sizes("device")["peak"] == [1000 * MIB, 1010 * MIB]
