"""What one reading costs, as ratios of interleaved medians; benchmarks/probes.py prints the figures."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest
import torch

from forgather_mem.engine import Run
from forgather_mem.probes import DeviceProbe, HostProbe, PythonProbe
from forgather_mem.probes import device as device_module
from forgather_mem.sample import Moment, Sample
from tests.probes.allocator_stats import PaperDevice, nested_stats


def ratio(ours: Callable[[], object], theirs: Callable[[], object], calls: int) -> float:
    took: dict[Callable[[], object], list[float]] = {ours: [], theirs: []}
    for _ in range(15):
        for call, seconds in took.items():
            began_s = time.perf_counter()
            for _ in range(calls):
                call()
            seconds.append(time.perf_counter() - began_s)
    return statistics.median(took[ours]) / statistics.median(took[theirs])


@pytest.fixture
def moment(run: Run) -> Moment:
    return Moment("step_end", 1, 0.5, None, None, None, {}, run)


SAMPLE = Sample(event="step_end", step=1, epoch=0.5, time_s=0.0, values={})


def test_a_host_sample_costs_at_most_0_7_of_psutil_s_memory_info(run: Run, moment: Moment) -> None:
    host, python, process = HostProbe(), PythonProbe(), psutil.Process()
    for probe in (host, python):
        probe.begin(run)
        probe(moment, SAMPLE)

    def sample() -> None:
        host(moment, SAMPLE)
        python(moment, SAMPLE)

    assert ratio(sample, process.memory_info, 200) <= 0.7
    host.end(run)
    python.end(run)


@pytest.mark.parametrize("reset_peaks", [False, True])
def test_the_python_part_of_a_device_sample_costs_at_most_1_25_of_memory_stats(
    run: Run, moment: Moment, monkeypatch: pytest.MonkeyPatch, reset_peaks: bool
) -> None:
    stats = nested_stats()
    paper = PaperDevice()
    monkeypatch.setattr(paper, "stats", lambda: stats)
    found = paper.allocator()
    monkeypatch.setattr(device_module, "current_allocator", lambda: found)
    monkeypatch.setattr("forgather_mem.probes.windows.current_allocator", lambda: found)
    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", lambda device: stats)
    probe = DeviceProbe(reset_peaks=reset_peaks)
    probe.begin(run)
    assert probe(moment, SAMPLE)["device/allocated_bytes"] == torch.cuda.memory_stats()["allocated_bytes.all.current"]
    assert ratio(lambda: probe(moment, SAMPLE), torch.cuda.memory_stats, 50) <= 1 / 25
    probe.end(run)


def test_importing_probes_and_actions_does_not_load_torch() -> None:
    script = "import sys, forgather_mem.probes, forgather_mem.actions; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
