from __future__ import annotations

import asyncio
import contextlib
import functools
import pickle
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from forgather_mem.system.peak_windows import host_peaks
from forgather_mem.trackers.blocks import monitor_memory, track_memory
from forgather_mem.units import MIB
from tests.memory import spike, touched
from tests.simulated_device import SimulatedDevice


@pytest.fixture
def lines() -> list[str]:
    return []


def number(line: str, word: str) -> float:
    """The MiB behind this word of a line."""
    found = re.search(rf"{word} ([+-]?\d+\.\d) MB", line)
    assert found is not None, line
    return float(found[1])


def above_start(line: str) -> float:
    return number(line, "peak") - number(line, "start")


# ---- what a block says ----


@pytest.mark.parametrize("mib", [1, 8, 64, 512])
def test_a_block_finds_what_was_kept_and_what_was_passing_within_one_mib(mib: int, lines: list[str]) -> None:
    with track_memory("data loading", say=lines.append) as block:
        kept = touched(mib)
        spike(mib)
    kept.close()
    assert block.cpu.exact
    assert block.cpu.consumed_bytes == pytest.approx(mib * MIB, abs=MIB)
    assert block.cpu.peak_bytes - block.cpu.start_bytes == pytest.approx(2 * mib * MIB, abs=MIB)
    assert block.gpu is None
    assert len(lines) == 1
    assert re.fullmatch(
        r"data loading: CPU start \d+\.\d MB, end \d+\.\d MB, consumed \+\d+\.\d MB, peak \d+\.\d MB", lines[0]
    )
    assert number(lines[0], "consumed") == pytest.approx(mib, abs=1)


def test_on_a_device_each_place_has_its_line(device: SimulatedDevice, lines: list[str]) -> None:
    device.hold(23)
    with track_memory("forward", say=lines.append) as block:
        device.spike(100)
        device.hold(31)
    gpu, cpu = lines[0].splitlines()
    assert gpu == "forward: GPU start 23.0 MB, end 31.0 MB, consumed +8.0 MB, peak 123.0 MB"
    assert cpu.startswith("forward: CPU start ")
    assert block.gpu.consumed_bytes == 8 * MIB


def test_a_block_tells_what_it_took_while_it_runs() -> None:
    with track_memory("block", say=lambda line: None) as block:
        kept = touched(16)
        assert block.cpu.consumed_bytes == pytest.approx(16 * MIB, abs=MIB)
        kept.close()
        assert block.cpu.consumed_bytes == pytest.approx(0, abs=MIB)
    assert block.cpu.peak_bytes - block.cpu.start_bytes == pytest.approx(16 * MIB, abs=MIB)


def test_an_error_is_measured_said_and_passed_on(lines: list[str]) -> None:
    def load() -> None:
        with track_memory("loading", say=lines.append):
            spike(32)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        load()
    assert lines[0].startswith("loading (ended by ValueError): CPU start ")
    assert above_start(lines[0]) == pytest.approx(32, abs=1)


def test_without_leave_to_reset_the_peak_is_said_to_be_a_lower_bound(lines: list[str]) -> None:
    spike(64)
    with track_memory("block", reset_peaks=False, say=lines.append) as block:
        spike(8)
    assert not block.cpu.exact
    assert "peak at least " in lines[0]


# ---- nesting ----


def test_an_inner_block_does_not_destroy_an_outer_peak(device: SimulatedDevice, lines: list[str]) -> None:
    device.hold(10)
    with track_memory("outer", say=lines.append):
        spike(64)
        device.spike(300)
        with track_memory("inner", say=lines.append):
            spike(8)
            device.spike(20)
        with track_memory("empty", say=lines.append):
            pass
    peaks = [[above_start(line) for line in text.splitlines()] for text in lines]  # GPU, CPU
    assert [gpu for gpu, _ in peaks] == [20, 0, 300]
    assert [cpu for _, cpu in peaks] == pytest.approx([8, 0, 64], abs=1)


def test_a_device_first_used_inside_counts_from_zero(device: SimulatedDevice, lines: list[str]) -> None:
    device.initialised = False
    with track_memory("training", say=lines.append):
        device.hold(500)
        device.hold(40)
        with track_memory("step", say=lines.append):  # it resets the device's peak
            device.spike(5)
    step, training = (text.splitlines()[0] for text in lines)
    assert step == "step: GPU start 40.0 MB, end 40.0 MB, consumed +0.0 MB, peak 45.0 MB"
    assert training == "training: GPU start 0.0 MB, end 40.0 MB, consumed +40.0 MB, peak 500.0 MB"


def test_one_object_may_be_entered_inside_itself(lines: list[str]) -> None:
    tracking = track_memory("block", say=lines.append)
    with tracking as outer:
        spike(64)
        with tracking as inner:
            spike(8)
        assert outer is not inner
        assert inner.cpu.peak_bytes < outer.cpu.peak_bytes
    assert [above_start(line) for line in lines] == pytest.approx([8, 64], abs=1)


def test_threads_share_one_object_without_mixing_their_blocks() -> None:
    lines: list[str] = []
    tracking = track_memory("block", say=lines.append)
    results: dict[int, tuple[object, object]] = {}
    turn = threading.Barrier(4)

    def work(number: int) -> None:
        for _ in range(25):
            with tracking as block:
                turn.wait(20)
                kept = touched(1)
                kept.close()
                mine = block
            results[number] = (mine, block.cpu)
            assert block.cpu.peak_bytes >= block.cpu.start_bytes

    with track_memory("outer", say=lines.append) as outer, ThreadPoolExecutor(4) as pool:
        working = pool.map(work, range(4))
        spike(64, hold_s=0.02)
        list(working)
    assert len(results) == 4
    assert len(lines) == 101
    assert outer.cpu.peak_bytes - outer.cpu.start_bytes >= 63 * MIB
    assert not tracking._inside


def test_tasks_that_interleave_each_end_their_own_block(lines: list[str]) -> None:
    tracking = track_memory("task", say=lines.append)
    ended: list[tuple[str, bool]] = []

    async def work(name: str, steps: int) -> None:
        with tracking as block:
            for _ in range(steps):
                await asyncio.sleep(0)
            running = block._window is not None
        ended.append((name, running and block._window is None))

    async def both() -> None:
        await asyncio.gather(work("first in, first out", 2), work("second", 5))

    asyncio.run(both())
    assert ended == [("first in, first out", True), ("second", True)]


def test_generators_that_interleave_each_end_their_own_block(lines: list[str]) -> None:
    tracking = track_memory("generator", say=lines.append)

    def items(mib: float) -> Iterator[int]:
        with tracking:
            kept = touched(mib)
            yield 1
            kept.close()
            yield 2

    first, second = items(32), items(4)
    next(first), next(second)
    list(first)
    assert number(lines[0], "consumed") == pytest.approx(4, abs=1), "its 32 came and went, the other's 4 are there"
    list(second)
    assert number(lines[1], "consumed") == pytest.approx(-32, abs=1)


# ---- decorated functions ----


class Loader:
    lines: list[str] = []  # noqa: RUF012 (shared by the decorators below)

    @monitor_memory("load", say=lines.append)
    def load(self, mib: float) -> float:
        spike(mib)
        return mib

    @monitor_memory(say=lines.append)
    @staticmethod
    def convert(mib: float) -> float:
        spike(mib)
        return mib


def test_methods_are_tracked_at_each_call() -> None:
    Loader.lines.clear()
    loader = Loader()
    assert (loader.load(4), loader.load(mib=8), Loader.convert(16)) == (4, 8, 16)
    assert [line.split(":")[0] for line in Loader.lines] == ["load", "load", "Loader.convert"]
    assert [above_start(line) for line in Loader.lines] == pytest.approx([4, 8, 16], abs=1)


@monitor_memory
def squared(x: int) -> int:
    return x * x


@track_memory("cubed")
def cubed(x: int) -> int:
    return x * x * x


def test_a_decorator_without_brackets_takes_the_function_s_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert (squared(3), cubed(3)) == (9, 27)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["squared", "cubed"]


def test_decorated_functions_and_trackers_pickle(capsys: pytest.CaptureFixture[str]) -> None:
    assert pickle.loads(pickle.dumps(squared))(4) == 16
    tracking = track_memory("label")
    with tracking, pickle.loads(pickle.dumps(tracking)):
        pass
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["squared", "label", "label"]


def test_callables_that_are_no_functions_can_be_decorated(lines: list[str]) -> None:
    assert monitor_memory(say=lines.append)(functools.partial(max, 3))(5) == 5
    assert monitor_memory("builtin", say=lines.append)(sum)([1, 2]) == 3
    assert [line.split(":")[0] for line in lines] == ["partial", "builtin"]


def test_a_generator_that_is_left_early_has_not_failed(lines: list[str]) -> None:
    closed: list[bool] = []

    @monitor_memory("batches", say=lines.append)
    def batches() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    for batch in batches():
        if batch == 2:
            break
    assert closed == [True]
    assert lines[0].startswith("batches: CPU start ")


def test_recursion_without_end_leaves_no_window_open(lines: list[str]) -> None:
    peaks = host_peaks()
    watching = len(peaks._windows)

    @monitor_memory("level", say=lines.append)
    def descend() -> int:
        return descend()

    with contextlib.suppress(RecursionError):
        descend()
    assert len(lines) > 50
    assert len(peaks._windows) == watching


@pytest.mark.filterwarnings("default")
def test_a_decorated_function_does_not_break_a_compiled_graph(lines: list[str]) -> None:
    @monitor_memory("call", say=lines.append)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.ones(3)
    compiled = torch.compile(lambda x: double(x.sin()) + 1, backend="eager", fullgraph=True)  # a break is an error
    assert torch.equal(compiled(x), x.sin() * 2 + 1)
    assert lines == []
    double(x)
    assert len(lines) == 1
