"""The trackers' lines from bytes that are given; what they tell of real blocks is in the other tests here."""

from __future__ import annotations

import pytest

from forgather_mem.system.usage import Span, Usage, UsageSpan
from forgather_mem.trackers.text import (
    Checkpoint,
    aligned,
    batch_line,
    block_lines,
    checkpoint_table,
    epoch_line,
    in_mb,
    usage_text,
)
from forgather_mem.units import MIB

HOST = Span(start_bytes=1600 * MIB, end_bytes=1634 * MIB, peak_bytes=1700 * MIB)
BOUND = Span(start_bytes=1600 * MIB, end_bytes=1634 * MIB, peak_bytes=1700 * MIB, exact=False)
DEVICE = Span(start_bytes=23 * MIB, end_bytes=14 * MIB, peak_bytes=2880 * MIB)


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0.0 MB"), (MIB // 2, "0.5 MB"), (-MIB, "-1.0 MB"), (10**10, "9536.7 MB")]
)
def test_mb_are_mib(num_bytes: int, text: str) -> None:
    assert in_mb(num_bytes) == text


def test_without_a_device_its_part_is_left_out() -> None:
    host, both = Usage(host_bytes=MIB), Usage(host_bytes=MIB, device_bytes=0)
    assert [usage_text(usage) for usage in (host, both)] == ["CPU 1.0 MB", "GPU 0.0 MB, CPU 1.0 MB"]
    assert batch_line(7, host, loss=0.25) == "Batch 7: CPU 1.0 MB, loss=0.250000"
    assert batch_line(7, both) == "Batch 7: GPU 0.0 MB, CPU 1.0 MB"


def test_a_peak_that_is_a_lower_bound_says_so() -> None:
    assert epoch_line(UsageSpan(host=HOST)) == "Epoch end: CPU 1634.0 MB, peak 1700.0 MB"
    assert epoch_line(UsageSpan(host=BOUND)) == "Epoch end: CPU 1634.0 MB, peak at least 1700.0 MB"
    assert block_lines("block", UsageSpan(host=BOUND)).endswith("consumed +34.0 MB, peak at least 1700.0 MB")


def test_an_epoch_on_a_device_is_told_by_the_device() -> None:
    assert epoch_line(UsageSpan(host=HOST, device=DEVICE)) == "Epoch end: GPU 14.0 MB allocated, peak 2880.0 MB"
    with_reserved = UsageSpan(host=HOST, device=DEVICE, reserved_bytes=3242 * MIB)
    assert "14.0 MB allocated, 3242.0 MB reserved, peak" in epoch_line(with_reserved)


def test_a_block_has_a_line_for_each_place_and_names_its_error() -> None:
    gpu, cpu = block_lines("load", UsageSpan(host=HOST, device=DEVICE), error="KeyError").splitlines()
    assert gpu == ("load (ended by KeyError): GPU start 23.0 MB, end 14.0 MB, consumed -9.0 MB, peak 2880.0 MB")
    assert cpu.startswith("load (ended by KeyError): CPU start 1600.0 MB")


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


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert aligned([["a", "1", "22"], ["bcd", "333", ""]]) == "a      1  22\nbcd  333"
