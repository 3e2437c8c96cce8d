"""High-water marks, against the kernel and a simulated device; how windows share one is in `test_peak_windows`."""

from dataclasses import replace

import pytest

from forgather_mem.system.allocator import current_allocator
from forgather_mem.system.peak_windows import DeviceMark, HostMark
from forgather_mem.units import MIB
from tests.memory import open_descriptors
from tests.simulated_device import SimulatedDevice


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


def test_a_devices_mark_is_its_allocators_which_may_keep_no_peaks(device: SimulatedDevice) -> None:
    found = current_allocator()
    mark, without = DeviceMark(found), DeviceMark(replace(found, reset_peaks=None))
    device.hold(500)
    device.hold(300)
    without.reset(0)
    assert mark.read() == (300 * MIB, 500 * MIB)
    mark.reset(0)
    assert mark.read() == (300 * MIB, 300 * MIB)
    assert (mark.resettable, without.resettable) == (True, False)
