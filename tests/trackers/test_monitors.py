"""MemoryMonitor and EpochMemoryMonitor, and what all trackers share: where lines go, and how they are switched off."""

import copy
import io
import pickle
import re
import runpy
import sys
from pathlib import Path

import psutil
import pytest
import torch

from forgather_mem import trackers
from forgather_mem.system.peak_windows import host_peaks
from forgather_mem.units import MIB
from tests.memory import open_descriptors, spike, status_bytes, touched
from tests.programs import printed_by
from tests.simulated_device import SimulatedDevice

MB = r"\d+\.\d MB"


def epoch(monitor: trackers.EpochMemoryMonitor, losses: list[float]) -> None:
    monitor.on_epoch_start()
    for batch_idx, loss in enumerate(losses):
        monitor.on_batch_end(batch_idx, loss)
    monitor.on_epoch_end()


# ---- the document's lines ----


def test_an_epoch_on_a_device_prints_the_document_s_lines(
    device: SimulatedDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = trackers.EpochMemoryMonitor(enabled=True, verbose_batches=5)
    device.hold(23.1)
    monitor.on_epoch_start()
    for batch_idx, loss in enumerate([0.00531, 0.01694, 0.009066, 0.014149, 0.011887, 0.02, 0.03]):
        monitor.on_batch_end(batch_idx, torch.tensor(loss, requires_grad=True))
    device.spike(2880.3 - 23.1)
    device.reserved = 3242.0
    device.hold(14.4)
    monitor.on_epoch_end()
    lines = re.sub(r"CPU \d+\.\d", "CPU 1634.7", capsys.readouterr().out).splitlines()
    assert lines == [
        "Memory monitoring enabled (verbose for first 5 batches)",
        "",
        "Batch 0: GPU 23.1 MB, CPU 1634.7 MB, loss=0.005310",
        "Batch 1: GPU 23.1 MB, CPU 1634.7 MB, loss=0.016940",
        "Batch 2: GPU 23.1 MB, CPU 1634.7 MB, loss=0.009066",
        "Batch 3: GPU 23.1 MB, CPU 1634.7 MB, loss=0.014149",
        "Batch 4: GPU 23.1 MB, CPU 1634.7 MB, loss=0.011887",
        "Epoch end: GPU 14.4 MB allocated, 3242.0 MB reserved, peak 2880.3 MB",
    ]


def test_without_a_device_the_gpu_part_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    epoch(trackers.EpochMemoryMonitor(verbose_batches=2), [0.5, 0.25, 0.125])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Memory monitoring enabled (verbose for first 2 batches)", ""]
    assert re.fullmatch(rf"Batch 0: CPU {MB}, loss=0\.500000", lines[2])
    assert re.fullmatch(rf"Batch 1: CPU {MB}, loss=0\.250000", lines[3])
    assert re.fullmatch(rf"Epoch end: CPU {MB}, peak {MB}", lines[4])
    assert len(lines) == 5


def test_mb_means_mib_and_agrees_with_the_kernel_and_psutil() -> None:
    block = touched(64)
    shown = trackers.MemoryMonitor.get_cpu_memory_mb()
    assert shown == pytest.approx(status_bytes("VmRSS") / 2**20, abs=1)
    assert shown == pytest.approx(psutil.Process().memory_info().rss / 2**20, abs=1)
    block.close()


def test_a_device_that_nobody_used_yet_is_not_asked(device: SimulatedDevice) -> None:
    device.initialised = False  # asking it would fail in the simulated device
    assert trackers.MemoryMonitor.get_gpu_memory_mb() is None
    assert trackers.MemoryMonitor.get_gpu_reserved_mb() is None
    device.hold(8)
    assert trackers.MemoryMonitor.get_gpu_memory_mb() == pytest.approx(8)
    assert trackers.MemoryMonitor.get_gpu_reserved_mb() == pytest.approx(8)


# ---- an epoch's peak ----


def test_an_epoch_s_peak_is_that_epoch_s_alone(capsys: pytest.CaptureFixture[str]) -> None:
    monitor = trackers.EpochMemoryMonitor(verbose_batches=0)
    for mib in (128, 16):
        monitor.on_epoch_start()
        spike(mib)
        monitor.on_epoch_end()
    ends = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Epoch end")]
    grown = [peak - held for held, peak in (map(float, re.findall(r"\d+\.\d", line)) for line in ends)]
    assert grown == pytest.approx([128, 16], abs=1.5)


def test_without_leave_to_reset_a_peak_below_an_older_one_is_a_lower_bound(capsys: pytest.CaptureFixture[str]) -> None:
    spike(64)
    monitor = trackers.EpochMemoryMonitor(verbose_batches=0, reset_peaks=False)
    monitor.on_epoch_start()
    before = status_bytes("VmHWM")
    monitor.on_epoch_end()
    assert "peak at least " in capsys.readouterr().out
    assert status_bytes("VmHWM") >= before, "the mark is as it was"


def test_an_epoch_that_was_cut_off_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    peaks = host_peaks()
    watching = len(peaks._windows)
    monitor = trackers.EpochMemoryMonitor(verbose_batches=0)
    monitor.on_epoch_start()
    spike(64)  # an exception ends the epoch: nobody says so
    epoch(monitor, [])
    held, peak = map(float, re.findall(r"\d+\.\d", capsys.readouterr().out.splitlines()[-1]))
    assert peak - held < 16
    assert len(peaks._windows) == watching


def test_an_end_without_a_start_says_what_is_held(capsys: pytest.CaptureFixture[str]) -> None:
    trackers.EpochMemoryMonitor().on_epoch_end()
    assert capsys.readouterr().out.startswith("Epoch end: CPU ")


# ---- the loss ----


class CountedLoss:
    """Stands for a tensor on a device: reading it makes the host wait."""

    reads = 0

    def item(self) -> float:
        type(self).reads += 1
        return 0.5


def test_a_loss_is_read_in_verbose_batches_only(capsys: pytest.CaptureFixture[str]) -> None:
    CountedLoss.reads = 0
    monitor = trackers.EpochMemoryMonitor(verbose_batches=3)
    for batch_idx in range(100):
        monitor.on_batch_end(batch_idx, CountedLoss())
    assert CountedLoss.reads == 3
    silent = trackers.EpochMemoryMonitor(enabled=False)
    silent.on_batch_end(0, CountedLoss())
    assert CountedLoss.reads == 3


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        (0.25, ", loss=0.250000"),
        (torch.tensor(0.25), ", loss=0.250000"),
        (torch.tensor([0.25], requires_grad=True), ", loss=0.250000"),
        (torch.tensor(float("nan")), ", loss=nan"),
        (torch.tensor([1.0, 2.0]), ""),
        ("unknown", ""),
        (None, ""),
    ],
)
def test_a_loss_that_is_no_number_is_left_out(loss: object, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    trackers.EpochMemoryMonitor().on_batch_end(0, loss)
    assert re.fullmatch(rf"Batch 0: CPU {MB}{shown}\n", capsys.readouterr().out)


# ---- switched off ----


def test_switched_off_nothing_is_printed_measured_or_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    def function() -> int:
        return 1

    assert trackers.monitor_memory("label", enabled=False)(function) is function
    assert trackers.track_memory("label", enabled=False)(function) is function
    before = open_descriptors()
    monitor = trackers.EpochMemoryMonitor(enabled=False)
    monitor.on_epoch_start()
    profiler = trackers.BatchMemoryProfiler(enabled=False)
    with trackers.track_memory("label", enabled=False) as block:
        monitor.on_batch_end(0, 0.5)
        profiler.checkpoint("forward")
        assert open_descriptors() == before
    profiler.print_summary()
    monitor.on_epoch_end()
    assert (block.cpu.consumed_bytes, block.cpu.exact, block.gpu) == (0, False, None)
    assert capsys.readouterr().out == ""


def test_the_environment_switches_everything_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORGATHER_MEM", "0")
    epoch(trackers.EpochMemoryMonitor(), [0.5])
    with trackers.track_memory("label") as block:
        pass
    assert block.cpu.peak_bytes == 0
    assert trackers.monitor_memory("label")(epoch) is epoch
    trackers.BatchMemoryProfiler().checkpoint("forward")
    trackers.MemoryMonitor.print_memory_usage("here: ")
    tracker = trackers.MemoryTracker()
    mark = status_bytes("VmHWM")
    tracker.record("start")
    tracker.print_summary()
    assert status_bytes("VmHWM") >= mark, "no mark is reset"
    assert capsys.readouterr().out == ""


# ---- where the lines go ----


def test_lines_go_where_say_says() -> None:
    lines: list[str] = []
    epoch(trackers.EpochMemoryMonitor(verbose_batches=1, say=lines.append), [0.5])
    with trackers.track_memory("block", say=lines.append):
        pass
    trackers.monitor_memory("call", say=lines.append)(len)([])
    assert [line.split(":")[0].split(" (")[0] for line in lines] == [
        "Memory monitoring enabled", "Batch 0", "Epoch end", "block", "call",
    ]  # fmt: skip


def test_a_closed_or_missing_stdout_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stdout", stream)
        epoch(trackers.EpochMemoryMonitor(), [0.5])


# ---- copies, and what is left behind ----


def test_trackers_in_use_can_be_pickled_and_copied() -> None:
    monitor, tracker = trackers.EpochMemoryMonitor(verbose_batches=1), trackers.MemoryTracker()
    profiler, tracking = trackers.BatchMemoryProfiler(), trackers.track_memory("label")
    monitor.on_epoch_start()
    tracker.record("start")
    profiler.checkpoint("start")
    with tracking:
        for copied in (pickle.loads(pickle.dumps([monitor, tracker, profiler, tracking])),
                       copy.deepcopy([monitor, tracker, profiler, tracking])):  # fmt: skip
            copied[0].on_epoch_end()
            copied[1].record("end")
            copied[2].checkpoint("end")
            with copied[3]:
                pass
            assert [record.name for record in copied[1].records] == ["start", "end"]
            assert list(copied[2].to_dict()["checkpoints"]) == ["start", "end"]
    assert [record.name for record in tracker.records] == ["start"]


def test_nothing_is_left_behind_when_trackers_are_dropped() -> None:
    peaks = host_peaks()
    trackers.MemoryTracker().record("the first")  # of this process: what all of them read stays open
    watching, descriptors = len(peaks._windows), open_descriptors()
    tracker, monitor, profiler = trackers.MemoryTracker(), trackers.EpochMemoryMonitor(), trackers.BatchMemoryProfiler()
    tracker.record("start")
    monitor.on_epoch_start()
    profiler.checkpoint("start")
    assert len(peaks._windows) == watching + 3
    del tracker, monitor, profiler
    assert len(peaks._windows) == watching
    assert open_descriptors() == descriptors


def test_trackers_alive_at_the_interpreter_s_end_say_nothing() -> None:
    script = """
from forgather_mem.trackers import BatchMemoryProfiler, EpochMemoryMonitor, MemoryTracker, track_memory
import sys
assert "torch" not in sys.modules and "transformers" not in sys.modules
tracker, monitor, block = MemoryTracker(), EpochMemoryMonitor(say=lambda line: None), track_memory("x")
tracker.record("start")
monitor.on_epoch_start()
block.__enter__()
"""
    assert printed_by(f"import sys; sys.stderr = sys.stdout\n{script}", RANK="0") == ""


# ---- the example ----


def test_the_example_shows_every_tracker(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "memory_monitoring.py"
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 80
    for head, times in (
        ("data loading: CPU start ", 1),
        ("After model creation: ", 1),
        ("Memory monitoring enabled (verbose for first 5 batches)", 1),
        ("Batch 0: ", 2),
        ("Batch 4: ", 2),
        ("Batch 5: ", 0),
        ("Epoch end: ", 2),
        ("training epoch: ", 2),
        ("Memory by checkpoint, MB", 1),
        ("backward  ", 1),
        ("Memory, MB", 1),
        ("after_training  ", 1),
        ("Memory was highest on the way from ", 1),
    ):
        assert sum(line.startswith(head) for line in printed.splitlines()) == times, head


# ---- on a real device ----


@pytest.mark.gpu
def test_a_real_device_s_lines_tell_known_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    held = torch.zeros(32 * MIB, dtype=torch.uint8, device="cuda")
    start = torch.cuda.memory_allocated() / MIB
    monitor = trackers.EpochMemoryMonitor(verbose_batches=1)
    monitor.on_epoch_start()
    spiked = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
    del spiked
    monitor.on_batch_end(0, held.sum())
    torch.cuda.set_sync_debug_mode("error")
    try:
        monitor.on_batch_end(1, held.sum())  # not verbose: the loss must not be read
    finally:
        torch.cuda.set_sync_debug_mode("default")
    monitor.on_epoch_end()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith(f"Batch 0: GPU {start:.1f} MB, CPU ")
    peak = float(re.findall(r"peak (\d+\.\d) MB", lines[3])[0])
    assert peak - start == pytest.approx(64, abs=1)
