from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.system.peak_windows import PeakWindow, PeakWindows, host_peaks
from forgather_mem.testing.small_run import in_child
from forgather_mem.units import MIB
from tests.memory import open_descriptors, reset_kernel_mark, spike, status_bytes, touched
from tests.programs import printed_by


@pytest.fixture
def peaks() -> PeakWindows:
    return host_peaks()


def test_closing_twice_changes_nothing(peaks: PeakWindows) -> None:
    window = peaks.open()
    spike(8)
    peak = window.close()
    spike(64)
    assert window.close() == window.look() == peak
    assert window.closed


def test_a_window_without_reset_gains_by_the_resets_of_others_of_ours(peaks: PeakWindows) -> None:
    spike(64)
    with closing(peaks.open(reset=False)) as window:
        with closing(peaks.open()):
            spike(8)
        assert window.look() - window.start_bytes == pytest.approx(8 * MIB, abs=MIB)
        assert not window.exact, "what was before that reset is still unknown"


def test_a_reset_by_somebody_else_is_noticed_and_does_not_lose_what_was_seen(peaks: PeakWindows) -> None:
    with closing(peaks.open()) as window:
        spike(64)
        seen = window.look()
        reset_kernel_mark()
        spike(8)
        assert window.look() == seen
        assert not window.exact


def test_memory_that_comes_between_a_reading_and_a_reset_is_not_taken_for_a_floor(peaks: PeakWindows) -> None:
    with closing(peaks.open()):
        current, _ = peaks.mark.read()
        block = touched(64)
        peaks.mark.reset(current)
        block.close()
        reset_kernel_mark()
        assert peaks.mark._floor_bytes < status_bytes("VmHWM"), "or each reading would take the dear way"


def test_a_forked_child_has_windows_of_its_own(peaks: PeakWindows) -> None:
    window = peaks.open()
    start_mark = status_bytes("VmHWM")

    def child() -> str:
        with closing(peaks.open()) as own:  # of the same owner object, in another process
            spike(32)
        return f"{own.look() - own.start_bytes} {window.closed}"

    with peaks.held():  # a lock that is held while forking must not hang the child
        grown, _, closed = str(in_child(child)).partition(" ")
    assert int(grown) == pytest.approx(32 * MIB, abs=MIB)
    assert closed == "True"
    assert window.close() < start_mark + 16 * MIB, "the child's memory is not ours"


def test_no_descriptor_stays_open_when_nobody_watches(peaks: PeakWindows) -> None:
    before = open_descriptors()
    with closing(peaks.open()) as outer, closing(peaks.open()):
        spike(1)
    assert outer.closed
    assert open_descriptors() == before


def test_memory_from_before_an_exec_is_not_taken_for_a_peak() -> None:
    script = """
import resource
from contextlib import closing
from forgather_mem.system.peak_windows import host_peaks
from tests.memory import spike
floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with closing(host_peaks().open()) as window:
    spike(8)
print(floor, window.start_bytes, window.look(), window.exact)
"""
    before_exec = (
        f"import os, sys; x = b'x' * {200 * MIB}; os.execv(sys.executable, [sys.executable, '-c', {script!r}])"
    )
    floor, start, peak, exact = printed_by(before_exec).split()
    assert int(floor) > 200 * MIB
    assert exact == "True"
    assert int(peak) - int(start) == pytest.approx(8 * MIB, abs=MIB)


class Simulated:
    """A mark over a number that a test moves; `true_peak` is what no reset harms."""

    slack_bytes = 0
    resettable = True

    def __init__(self) -> None:
        self.current = self.peak = 0
        self.trace = [0]

    def hold(self, current: int) -> None:
        self.current = current
        self.peak = max(self.peak, current)
        self.trace.append(current)

    def read(self) -> tuple[int, int]:
        return self.current, self.peak

    def reset(self, current_bytes: int) -> None:
        self.peak = self.current

    def rest(self) -> None:
        pass


_actions = st.one_of(
    st.tuples(st.just("hold"), st.integers(0, 100)),
    st.tuples(st.just("open"), st.booleans()),
    st.tuples(st.sampled_from(["close", "restart", "look"]), st.integers(0, 5)),
)


@given(st.lists(_actions, max_size=60))
def test_every_window_gives_the_highest_of_its_time_whatever_the_others_do(actions: list[tuple[str, int]]) -> None:
    mark = Simulated()
    peaks = PeakWindows(mark)
    opened: list[tuple[PeakWindow, int, bool]] = []  # window, where its time begins, whether it resets
    for name, number in actions:
        if name == "hold":
            mark.hold(number)
        elif name == "open":
            opened.append((peaks.open(reset=bool(number)), len(mark.trace) - 1, bool(number)))
        elif opened:
            window, began, resets = opened[number % len(opened)]
            if window.closed:
                continue
            highest = max(mark.trace[began:])
            if name == "restart":
                window.restart(peaks.fold(None))
                opened[number % len(opened)] = (window, len(mark.trace) - 1, resets)
                continue
            getattr(window, name)()
            if window.exact:
                assert window.look() == highest
            else:
                assert not resets
                assert window.look() <= highest
    for window, began, resets in opened:
        if not window.closed:
            peak = window.close()
            assert window.exact or not resets
            assert peak == max(mark.trace[began:]) if window.exact else peak <= max(mark.trace[began:])
