"""Numbers and texts that are read from files are bounded."""

import pytest

from forgather_mem.telemetry.bounds import MOST, bounded_text, is_number


@pytest.mark.parametrize("value", [0, -1.5, MOST, -MOST])
def test_what_can_be_a_size_or_a_time_is_a_number(value: float) -> None:
    assert is_number(value)


@pytest.mark.parametrize("value", [True, None, "1", float("nan"), float("inf"), MOST + 1, [1]])
def test_anything_else_is_none(value: object) -> None:
    assert not is_number(value)


def test_only_the_beginning_of_a_very_long_text_stays() -> None:
    assert bounded_text("a" * 10_000) == "a" * 10_000
    assert bounded_text("a" * 10_001) == "a" * 10_000 + "..."
