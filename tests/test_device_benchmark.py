"""The runner of `make device`, also where there is no accelerator."""

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from forgather_mem.units import MIB
from tests.forked import Forked
from tests.simulated_device import TOTAL_MIB, SimulatedDevice, simulated_devices

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """benchmarks/device.py as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("device")
    for name in ("device", "_device_memory", "_device_times"):
        sys.modules.pop(name, None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator: it would run")
@pytest.mark.fresh
def test_without_an_accelerator_it_says_what_it_would_do(device: ModuleType, tmp_path: Path) -> None:
    code, out, err = Forked(BENCHMARKS / "device.py", [], tmp_path, os.environ).wait()
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[2:]] == [part.name for part in device.PARTS]


def test_a_part_that_crashes_or_hangs_ends_no_other(device: ModuleType) -> None:
    (part,) = device.chosen(["oom-allocator"], True)
    (crashed,) = device.lines_of(replace(part, name="unknown"), "cpu", 120)
    (hung,) = device.lines_of(replace(part, limit_s=0.05), "cpu", 120)
    assert (crashed.ok, hung.ok) == (False, False)
    assert crashed.figures.startswith("it ended with 1: ")
    assert hung.figures.startswith("it took too long")


class Block:
    """What a simulated device holds as long as this lives."""

    def __init__(self, num_bytes: int, device: SimulatedDevice) -> None:
        self.size, self._device = num_bytes, device
        most = min(device.fraction * TOTAL_MIB, TOTAL_MIB - device.others)
        if num_bytes / MIB > most - device.allocated:
            self.size = 0
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 MiB.")
        device.hold(device.allocated + num_bytes / MIB)

    def numel(self) -> int:
        return self.size

    def __del__(self) -> None:
        self._device.hold(self._device.allocated - self.size / MIB)


@pytest.mark.parametrize("others", [0, 3000])
def test_known_tensors_and_headroom_are_right_on_a_simulated_device_and_wrong_numbers_are_found(
    device: ModuleType, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    memory = importlib.import_module("_device_memory")
    with simulated_devices(monkeypatch, 1) as (simulated,):
        simulated.others = others

        def set_fraction(fraction: float) -> None:
            simulated.fraction = fraction

        monkeypatch.setattr(memory, "hold", lambda num_bytes, device: Block(num_bytes, simulated))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: int(simulated.allocated * MIB))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", set_fraction)
        rows = {row.what: row.ok for row in memory.known("cuda")}
        simulated.fraction = 1.0
        monkeypatch.setattr(simulated, "memory_info", lambda index: (1500 * MIB, TOTAL_MIB * MIB))
        wrong = {row.what: row.ok for row in memory.known("cuda")}
    counters = rows.pop("errors of the allocator")
    assert counters is False, "the simulated device counts none"
    assert set(rows.values()) == {True}
    assert wrong["headroom of the whole card"] is False
