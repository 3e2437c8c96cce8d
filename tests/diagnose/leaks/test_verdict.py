"""What is said of the trends of a run."""

from __future__ import annotations

from forgather_mem.diagnose.leaks.verdict import verdict_of
from forgather_mem.growth.trend import Trend


def trend(kind: str, steps: int) -> Trend:
    return Trend(kind=kind, steps=steps, per_step=1e5, high=1e5)  # type: ignore[arg-type]


def test_after_many_steps_what_can_not_be_judged_is_too_uneven_and_not_too_early() -> None:
    leak = verdict_of({"anon": trend("not enough data", 400)}, [], 400)
    assert (leak.verdict, leak.undecided) == ("not enough data", "uneven")
    assert leak.why == "memory rose too unevenly over 400 steps to say whether it leaks"


def test_after_few_steps_it_is_too_early() -> None:
    leak = verdict_of({"anon": trend("not enough data", 70)}, [], 70)
    assert (leak.verdict, leak.undecided, leak.why) == ("not enough data", None, None)


def test_what_does_not_grow_is_no_leak() -> None:
    assert verdict_of({"anon": Trend(kind="no leak", steps=400, high=1000.0)}, [], 400).verdict == "no leak"
