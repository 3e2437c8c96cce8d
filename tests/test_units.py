"""Sizes, durations and shares for people, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.units import format_bytes, format_duration, parse_bytes, parse_share


@given(st.integers(0, 2**60))
def test_a_size_that_was_written_is_read_back_to_its_digits(num_bytes: int) -> None:
    text = format_bytes(num_bytes).replace(",", "")
    assert parse_bytes(text) == pytest.approx(num_bytes, rel=0.05)
    assert format_bytes(-num_bytes).removeprefix("-") == format_bytes(num_bytes)


def test_a_unit_changes_where_its_number_would_have_four_digits() -> None:
    shown = [format_bytes(size) for size in (1023, 1024, 1023.9 * 1024, 1023.99 * 1024, 2**50)]
    assert shown == ["1023 B", "1.0 KiB", "1,023.9 KiB", "1.0 MiB", "1,024.0 TiB"]


def test_no_duration_is_written_with_sixty_of_anything() -> None:
    shown = [format_duration(seconds) for seconds in (0.9999, 59.94, 599.4, 3599, 3600, 7199, 90_000)]
    assert shown == ["999.9 ms", "59.9 s", "9 min 59 s", "1 h 00 min", "1 h 00 min", "2 h 00 min", "25 h 00 min"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("40GB", "write 40GiB"),
        ("512 m", "write 512MiB"),
        ("3 PiB", "the units are B, KiB, MiB, GiB, TiB"),
        ("GiB", "is not a size"),
        ("-1GiB", "is not a size"),
        (True, "is not a size"),
    ],
)
def test_what_is_no_size_is_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_bytes(text)


def test_sizes_and_shares_in_the_ways_that_people_write_them() -> None:
    assert {parse_bytes(text) for text in ("1.5GiB", " 1.5 gib ", "1536MiB", 1.5 * 2**30)} == {3 * 2**29}
    assert [parse_share(text) for text in ("90%", " 90 % ", 0.9, "0.9")] == [0.9] * 4
    with pytest.raises(ValueError, match="write '90%'"):
        parse_share("most")
