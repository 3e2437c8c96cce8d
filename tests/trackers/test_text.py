"""The trackers' table from bytes that are given; their lines are in the other tests here."""

import pytest

from forgather_mem.system.usage import Span
from forgather_mem.trackers.text import Checkpoint, checkpoint_table, in_mb
from forgather_mem.units import MIB

HOST = Span(start_bytes=1600 * MIB, end_bytes=1634 * MIB, peak_bytes=1700 * MIB)
BOUND = Span(start_bytes=1600 * MIB, end_bytes=1634 * MIB, peak_bytes=1700 * MIB, exact=False)
DEVICE = Span(start_bytes=23 * MIB, end_bytes=14 * MIB, peak_bytes=2880 * MIB)


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0.0 MB"), (MIB // 2, "0.5 MB"), (-MIB, "-1.0 MB"), (10**10, "9536.7 MB")]
)
def test_mb_are_mib(num_bytes: int, text: str) -> None:
    assert in_mb(num_bytes) == text


def test_a_table_has_a_column_for_each_place_and_for_counts_where_a_row_has_several() -> None:
    rows = [
        Checkpoint(name="begin", host=HOST, device=DEVICE, first=True),
        Checkpoint(name="forward", host=BOUND, device=DEVICE, times=20),
    ]
    assert checkpoint_table("MB", rows).splitlines() == [
        "MB       times   GPU  change    peak     CPU  change      peak",
        "begin        1  14.0                  1634.0",
        "forward     20  14.0    -9.0  2880.0  1634.0   +34.0  >=1700.0",
    ]
    assert checkpoint_table("MB", [Checkpoint(name="begin", host=HOST, first=True)]).splitlines() == [
        "MB        CPU  change  peak",
        "begin  1634.0",
    ]
