"""Calls that leave something behind are told with what holds it; the fixture around this is in `test_pytest_plugin`."""

import random
from collections import deque

import pytest

from forgather_mem.diagnose.leaks.repeated import growth_of_calls
from forgather_mem.units import KIB

KEPT: list[bytearray] = []
LAST: deque[bytearray] = deque(maxlen=100)


def keeps() -> None:
    KEPT.append(bytearray(100 * KIB))


@pytest.mark.slow
def test_what_each_call_leaves_is_told_with_its_holder() -> None:
    text = growth_of_calls(keeps, calls=32, warm_up=3, max_bytes=1000.0)
    assert len(KEPT) == 35
    KEPT.clear()
    first, holder, *_ = str(text).splitlines()
    assert first.startswith("each call leaves 100.")
    assert holder.startswith(f"held by {__name__}.KEPT, added at tests/diagnose/leaks/test_repeated.py:")
    assert holder.endswith("KEPT.append(bytearray(100 * KIB))")


def test_of_what_fills_up_the_advice_is_to_fill_it_first() -> None:
    text = growth_of_calls(lambda: LAST.append(bytearray(100 * KIB)), calls=32, warm_up=3, max_bytes=1000.0)
    LAST.clear()
    assert str(text).endswith(f"try: a warm_up that fills it first: {__name__}.LAST holds 100 at most")


def test_small_objects_are_weighed() -> None:
    kept: list[list[float]] = []
    text = growth_of_calls(lambda: kept.append([random.random() for _ in range(640)]), calls=32, warm_up=3, max_bytes=0)
    assert float(str(text).split()[3]) == pytest.approx(640 * (32 + 8) / KIB, rel=0.2)


@pytest.mark.parametrize("wrong", [{"calls": 31}, {"warm_up": -1}, {"max_bytes": -1.0}])
def test_calls_that_can_not_tell_anything_are_refused(wrong: dict[str, float]) -> None:
    numbers: dict[str, float] = {"calls": 32, "warm_up": 0, "max_bytes": 0.0, **wrong}
    with pytest.raises(ValueError, match="give 32 calls or more, and neither warm-up nor bytes below 0"):
        growth_of_calls(KEPT.clear, **numbers)  # type: ignore[arg-type]
