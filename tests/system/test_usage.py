"""Memory over a span of time on the host and on a simulated device; nesting and threads are in `tests/trackers`."""

import gc

import pytest

from forgather_mem.system.peak_windows import host_peaks
from forgather_mem.system.usage import Span, Usage, UsageWindow, usage_now
from forgather_mem.units import MIB
from tests.memory import spike, status_bytes, touched
from tests.simulated_device import simulated_device


def test_usage_is_the_kernels_word_and_without_a_device_only_the_hosts() -> None:
    usage = usage_now()
    assert usage.host_bytes == pytest.approx(status_bytes("VmRSS"), abs=2 * MIB)
    assert (usage.device_bytes, usage.reserved_bytes) == (None, None)


def test_a_window_finds_what_was_kept_and_what_was_passing() -> None:
    UsageWindow.open().close()  # the first one reads code of ours into memory
    window = UsageWindow.open()
    spike(64)
    block = touched(16)
    span = window.close()
    block.close()
    assert span.host.exact
    assert span.host.consumed_bytes == pytest.approx(16 * MIB, abs=MIB)
    assert span.host.peak_bytes - span.host.start_bytes == pytest.approx(64 * MIB, abs=MIB)
    assert (span.device, span.reserved_bytes) == (None, None)
    assert span.end == Usage(host_bytes=span.host.end_bytes)


def test_a_device_has_a_span_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_device(monkeypatch) as device:
        device.hold(100)
        assert usage_now().device_bytes == 100 * MIB
        window = UsageWindow.open()
        device.spike(300)
        device.hold(150)
        assert window.span().device == Span(start_bytes=100 * MIB, end_bytes=150 * MIB, peak_bytes=400 * MIB)
        span = window.close()
    assert span.device == Span(start_bytes=100 * MIB, end_bytes=150 * MIB, peak_bytes=400 * MIB)
    assert span.reserved_bytes == span.end.reserved_bytes == 400 * MIB
    assert span.end.device_bytes == 150 * MIB


def test_a_device_first_used_inside_counts_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_device(monkeypatch) as device:
        device.initialised = False
        window = UsageWindow.open()
        assert window.span().device is None
        device.hold(70)
        device.hold(50)
        span = window.close()
    assert span.device == Span(start_bytes=0, end_bytes=50 * MIB, peak_bytes=70 * MIB)


def test_a_window_that_is_dropped_ends_by_itself() -> None:
    peaks = host_peaks()
    assert peaks is not None
    before = len(peaks._windows)
    window = UsageWindow.open()
    assert len(peaks._windows) == before + 1
    del window
    gc.collect()
    assert len(peaks._windows) == before


def test_after_its_end_a_window_claims_no_exact_peak() -> None:
    window = UsageWindow.open()
    assert window.close().host.exact
    again = window.close().host
    assert not again.exact
    assert again.peak_bytes >= again.end_bytes
