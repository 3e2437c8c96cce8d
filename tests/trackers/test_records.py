import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forgather_mem.trackers.records import BatchMemoryProfiler, MemoryTracker
from forgather_mem.units import MIB
from tests.memory import spike, status_bytes, touched
from tests.simulated_device import SimulatedDevice


def numbers(line: str) -> list[float]:
    return [float(found) for found in re.findall(r"[+-]?\d+\.\d", line)]


# ---- MemoryTracker ----


def test_records_tell_what_was_kept_and_the_peak_on_the_way() -> None:
    tracker = MemoryTracker()
    started_s = time.time()
    first = tracker.record("initialization")
    kept = touched(64)
    spike(128)
    second = tracker.record("after_training")
    kept.close()
    assert (first.since, second.since) == (None, "initialization")
    assert second.cpu.consumed_bytes == pytest.approx(64 * MIB, abs=MIB)
    assert second.cpu.peak_bytes - first.cpu.end_bytes == pytest.approx(192 * MIB, abs=MIB)
    assert second.cpu.end_bytes == pytest.approx(status_bytes("VmRSS") + 64 * MIB, abs=MIB)
    assert started_s <= first.time_s <= second.time_s <= time.time()


def test_a_record_s_peak_is_not_that_of_an_earlier_one() -> None:
    tracker = MemoryTracker()
    tracker.record("a")
    spike(64)
    tracker.record("b")
    spike(8)
    peaks = [record.cpu.peak_bytes - record.cpu.start_bytes for record in [*tracker.records, tracker.record("c")]]
    assert peaks == pytest.approx([0, 64 * MIB, 8 * MIB], abs=MIB)


def test_the_peak_is_the_record_before_which_memory_was_highest(device: SimulatedDevice) -> None:
    tracker = MemoryTracker()
    assert tracker.peak() is None
    device.hold(1)
    tracker.record("start")
    spike(64)
    tracker.record("host was high")
    device.spike(500)
    tracker.record("device was high")
    tracker.record("end")
    assert tracker.peak() == tracker.records[2]


def test_without_a_device_the_peak_is_the_host_s() -> None:
    tracker = MemoryTracker()
    tracker.record("start")
    spike(64)
    tracker.record("high")
    tracker.record("end")
    assert tracker.peak() == tracker.records[1]


def test_a_tracker_prints_a_table(device: SimulatedDevice, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = MemoryTracker()
    device.hold(23.1)
    tracker.record("initialization")
    device.hold(14.4)
    device.spike(2880)
    tracker.record("after_training")
    tracker.print_summary()
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["Memory,", "MB", "GPU", "change", "peak", "CPU", "change", "peak"]
    assert first.startswith("initialization  23.1  ")
    assert numbers(second)[:3] == [14.4, -8.7, 2894.4]
    assert [len(numbers(line)) for line in (first, second)] == [2, 6]
    assert second.index("14.4") == first.index("23.1"), "numbers stand under each other"


def test_a_tracker_as_a_dict_is_json_and_leaves_out_what_was_not_measured(device: SimulatedDevice) -> None:
    device.initialised = False
    tracker = MemoryTracker()
    tracker.record("start")
    device.hold(32)
    tracker.record("end")
    told = json.loads(json.dumps(tracker.to_dict()))
    assert told["unit"] == "bytes"
    first, second = told["records"]
    assert set(first) == {"name", "time_s", "cpu_bytes"}
    assert set(second) == {*first, "cpu_peak_bytes", "gpu_bytes", "gpu_peak_bytes", "gpu_reserved_bytes"}
    assert second["gpu_bytes"] == second["gpu_peak_bytes"] == 32 * MIB
    assert second["cpu_bytes"] == pytest.approx(status_bytes("VmRSS"), abs=MIB)


def test_threads_may_record_into_one_tracker() -> None:
    tracker = MemoryTracker()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(lambda: [tracker.record(f"{index}") for index in range(50)])
    assert len(tracker.records) == 200
    assert [record.since is None for record in tracker.records].count(True) == 1
    for before, after in zip(tracker.records, tracker.records[1:], strict=False):
        assert after.since == before.name


def test_a_plot_shows_every_record(device: SimulatedDevice, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    tracker = MemoryTracker()
    tracker.record("start")
    device.hold(16)
    tracker.record("end")
    figure = tracker.plot(tmp_path / "memory.png")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["start", "end"]
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert set(drawn) == {"CPU", "CPU peak", "GPU", "GPU peak"}
    assert drawn["CPU"] == [record.cpu.end_bytes / MIB for record in tracker.records]
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_no_records_is_empty() -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    assert not MemoryTracker().plot().axes[0].lines


def test_a_plot_without_matplotlib_names_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)  # what an import finds where it is not installed
    with pytest.raises(ImportError, match=r"pip install 'forgather_mem\[plot\]'"):
        MemoryTracker().plot()


# ---- BatchMemoryProfiler ----


def test_checkpoints_are_gathered_by_name_over_all_batches(capsys: pytest.CaptureFixture[str]) -> None:
    profiler = BatchMemoryProfiler()
    for _ in range(5):
        profiler.checkpoint("data_loaded")
        kept = touched(32)
        spike(64)
        profiler.checkpoint("forward")
        kept.close()
    told = profiler.to_dict()["checkpoints"]
    assert [(name, values["times"]) for name, values in told.items()] == [("data_loaded", 5), ("forward", 5)]
    assert told["forward"]["cpu_change_bytes"] == pytest.approx(32 * MIB, abs=MIB)
    assert told["data_loaded"]["cpu_change_bytes"] == pytest.approx(-32 * MIB, abs=MIB)
    assert told["forward"]["cpu_peak_bytes"] - told["data_loaded"]["cpu_bytes"] == pytest.approx(96 * MIB, abs=MIB)
    profiler.print_summary()
    head, data_loaded, forward = capsys.readouterr().out.splitlines()
    assert head.split() == ["Memory", "by", "checkpoint,", "MB", "times", "CPU", "change", "peak"]
    assert data_loaded.split()[:2] == ["data_loaded", "5"]
    assert numbers(forward)[1] == pytest.approx(32, abs=1)


def test_a_device_s_peak_between_checkpoints_is_seen(device: SimulatedDevice) -> None:
    profiler = BatchMemoryProfiler()
    for spiked in (100, 300, 200):
        device.hold(10)
        profiler.checkpoint("data_loaded")
        device.spike(spiked)
        device.hold(30)
        profiler.checkpoint("forward")
    forward = profiler.to_dict()["checkpoints"]["forward"]
    assert (forward["gpu_bytes"], forward["gpu_change_bytes"]) == (30 * MIB, 20 * MIB)
    assert forward["gpu_peak_bytes"] == 310 * MIB, "the highest of all batches"


def test_the_very_first_checkpoint_has_no_change_and_no_peak(capsys: pytest.CaptureFixture[str]) -> None:
    profiler = BatchMemoryProfiler()
    profiler.checkpoint("only")
    assert set(profiler.to_dict()["checkpoints"]["only"]) == {"times", "cpu_bytes"}
    profiler.print_summary()
    assert len(numbers(capsys.readouterr().out.splitlines()[1])) == 1


def test_a_profiler_stays_the_same_size_however_many_batches_it_sees() -> None:
    profiler = BatchMemoryProfiler()
    sizes = []
    for _ in range(3):
        for _ in range(1_000):
            profiler.checkpoint("forward")
            profiler.checkpoint("backward")
        sizes.append(len(json.dumps(profiler.to_dict())))
    assert len(profiler.to_dict()["checkpoints"]) == 2
    assert max(sizes) - min(sizes) < 50


def test_without_records_or_checkpoints_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    MemoryTracker().print_summary()
    BatchMemoryProfiler().print_summary()
    assert capsys.readouterr().out == "Memory: no records\nMemory: no checkpoints\n"
