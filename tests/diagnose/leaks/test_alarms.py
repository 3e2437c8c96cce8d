"""What was said while a training ran is in the final verdict, or is taken back by name."""

import pytest

from forgather_mem.diagnose.leaks.alarms import Alarm, taken_back
from forgather_mem.growth.trend import Series, Trend
from forgather_mem.telemetry.report import LeakReport
from tests.growth.trend_series import MIB

ALARM = Alarm(step=96, given_back_at={"native": 0.0}, said="host memory grows 200.0 KiB a step")
LEAK, NO_LEAK = LeakReport(verdict="leak", judged=True), LeakReport(verdict="no leak", judged=True)


def told(sizes: list[float], kind: str = "no leak", leak: LeakReport = NO_LEAK, alarm: Alarm = ALARM) -> str | None:
    series = Series((4 * number, size) for number, size in enumerate(sizes))
    return taken_back(alarm, leak, {"native": Trend(kind=kind)}, {"native": series})  # type: ignore[arg-type]


def test_an_alarm_that_the_verdict_repeats_stands() -> None:
    rising = [number * MIB for number in range(100)]
    assert told(rising, "leak", LEAK) is None
    assert told(rising, "leak", LeakReport(judged=True, why="it grows, but a cache holds 100 at most")) is None
    objects = Alarm(step=96, given_back_at={"objects": 0.0}, said="host memory grows 200.0 KiB a step")
    assert told(rising, "leak", LEAK, objects) is None


@pytest.mark.parametrize(
    ("sizes", "kind", "reason"),
    [
        ([min(number, 40) * MIB for number in range(100)], "no leak", "it has hardly grown since step 1"),
        ([number * MIB if number < 60 else 0.0 for number in range(100)], "no leak", "it has been given back since"),
        ([number**0.5 * MIB for number in range(100)], "slowing", "it grows ever less"),
        ([number * MIB for number in range(100)], "not enough data", "it has grown too unevenly since to be judged"),
        ([], "not enough data", "it has been given back since"),
    ],
    ids=["flat", "given back", "slowing", "unclear", "ended"],
)
def test_one_that_no_longer_holds_is_taken_back_with_the_reason(sizes: list[float], kind: str, reason: str) -> None:
    said = told(sizes, kind)
    assert said.startswith(f"host memory grows 200.0 KiB a step (step 96): {reason}")


def test_a_leak_of_something_else_does_not_confirm_it() -> None:
    workers = Alarm(step=160, given_back_at={"workers": 0.0}, said="the data workers grow 1.0 MiB a step")
    said = told([number * MIB for number in range(100)], "leak", LEAK, workers)
    assert said.startswith("the data workers grow 1.0 MiB a step (step 160): it has been given back since")
