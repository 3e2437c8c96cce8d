"""High-water marks, against the kernel and an allocator on paper; how windows share one is in `test_peak_windows`."""

import pytest

from forgather_mem.system.high_water import DeviceMark, HostMark
from forgather_mem.units import GIB, MIB
from tests.memory import open_descriptors
from tests.system.allocator_stats import PaperDevice


def test_a_peak_is_never_below_what_is_held() -> None:
    mark = HostMark()
    assert mark.peak_bytes(2**50) == 2**50
    mark.rest()


@pytest.mark.fresh  # whoever reads /proc in this process shares one descriptor a file
def test_a_mark_that_rests_keeps_no_file_open_and_can_be_read_again() -> None:
    before, mark = open_descriptors(), HostMark()
    assert open_descriptors() == before
    assert mark.read()[0] > MIB
    assert len(open_descriptors()) > len(before)
    mark.rest()
    assert open_descriptors() == before


def test_a_devices_mark_is_its_allocators() -> None:
    paper = PaperDevice()
    mark = DeviceMark(paper.allocator())
    assert mark.resettable
    paper.hold(5 * GIB)
    paper.hold(3 * GIB)
    assert mark.read() == (3 * GIB, 5 * GIB)
    mark.reset(3 * GIB)
    assert mark.read() == (3 * GIB, 3 * GIB)
    assert paper.resets == 1


def test_an_allocator_that_keeps_no_peaks_is_not_reset() -> None:
    paper = PaperDevice()
    mark = DeviceMark(paper.allocator(with_peaks=False))
    mark.reset(0)
    assert (mark.resettable, paper.resets) == (False, 0)
