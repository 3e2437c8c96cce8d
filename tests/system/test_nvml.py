"""What other processes hold on our device, from NVML on paper."""

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from forgather_mem.system import nvml
from forgather_mem.system.allocator import current_allocator
from forgather_mem.units import GIB
from tests.simulated_device import simulated_device


class PaperNvml(ModuleType):
    """NVML as pynvml shows it, with the processes a test writes down."""

    class NVMLError(Exception):
        pass

    def __init__(self, processes: dict[int, int | None]) -> None:
        super().__init__("pynvml")
        self._processes = processes

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self._processes.items()]


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ({"me": 3 * GIB, 1: GIB, 2: 2 * GIB}, 3 * GIB),
        ({"me": 3 * GIB}, 0),
        ({1: GIB}, None),  # our number means another process there: ours can't be told from theirs
        ({"me": GIB, 1: None}, None),  # a driver that does not tell
    ],
)
def test_what_other_processes_hold_is_what_nvml_says_without_us(
    monkeypatch: pytest.MonkeyPatch, processes: dict[Any, int | None], expected: int | None
) -> None:
    paper = {os.getpid() if pid == "me" else pid: size for pid, size in processes.items()}
    monkeypatch.setitem(sys.modules, "pynvml", PaperNvml(paper))
    monkeypatch.setattr(nvml, "_handle", lambda index: object())
    with simulated_device(monkeypatch):
        found = current_allocator()
        assert found is not None
        assert nvml.other_processes_bytes(found) == expected
