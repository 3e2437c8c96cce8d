"""What is said of the trends of a run."""

from typing import Any

from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.diagnose.leaks.verdict import verdict_of
from forgather_mem.growth.trend import Trend
from forgather_mem.units import GIB


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


def holder(held_by: str, rate: float, **more: Any) -> Suspect:
    return Suspect(kind="dict", type="dict", bytes_per_step=rate, count_per_step=1.0, held_by=held_by, **more)


GROWING = {"native": Trend(kind="leak", steps=400, per_step=1e5, low=1e5, high=1e5)}


def test_what_ends_at_a_limit_that_fits_is_told_with_what_it_holds_then() -> None:
    bounded = holder("Clips.decoded", 1e5, bounded="Clips.decoded holds 4,000 at most", full_bytes=2 * 10**8)
    leak = verdict_of(GROWING, [bounded], 400)
    assert (leak.verdict, leak.undecided) == ("not enough data", "bounded")
    assert leak.why == (
        "host memory grows 97.7 KiB a step, but Clips.decoded holds 4,000 at most, about 190.7 MiB then"
    )


def test_a_limit_beyond_what_is_left_is_a_leak() -> None:
    bounded = holder("Clips.decoded", 1e5, bounded="Clips.decoded holds 4,000 at most", full_bytes=10**6 * GIB)
    assert verdict_of(GROWING, [bounded], 400).verdict == "leak"


def test_of_growing_workers_who_starts_them_is_named_first() -> None:
    growing = {"workers": Trend(kind="leak", steps=400, per_step=1e6), "objects": Trend(kind="leak", per_step=1e3)}
    suspects = [holder("Keeps.rows", 1e6), holder("Rounds.loaders", 1e3, runs_workers=True)]
    leak = verdict_of(growing, suspects, 400)
    assert (leak.where, [one.held_by for one in leak.suspects]) == ("workers", ["Rounds.loaders", "Keeps.rows"])


def test_of_items_that_differ_the_size_is_that_of_the_run() -> None:
    uneven = holder("Log.rows", 1.6e5, each="e.g. dict of 3 with str of 910", count=400, bytes=64_000_000)
    (told,) = verdict_of(GROWING, [uneven], 400).suspects
    assert (told.bytes_per_step, told.bytes) == (1e5, 40_000_000)


def test_what_nobody_has_searched_for_is_not_said_to_be_held_by_no_python_object() -> None:
    leak = verdict_of(GROWING, [], 400, searched=False)
    assert (leak.verdict, leak.where, leak.suspects) == ("leak", "host", ())
    assert [one.kind for one in verdict_of(GROWING, [], 400).suspects] == ["made"]
