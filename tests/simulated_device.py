"""An accelerator for machines that have none: torch's own questions to its allocator, answered by numbers.

What is simulated is torch (`torch.cuda`, `torch._C`), never our own code. The nested statistics have the
shape that `torch._C._cuda_memoryStats` gives on a real card.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forgather_mem.system import allocator, peak_windows
from forgather_mem.units import MIB

TOTAL_MIB = 8192
ALL = "all"  # as when a kernel has failed: the process's context on the device is lost
PROPERTIES = SimpleNamespace(name="Simulated 8", total_memory=TOTAL_MIB * MIB, uuid="0000-01")


class SimulatedDevice:
    """What torch's allocator holds; sizes in MiB. `initialised` is False until the script uses the device.

    Attributes:
        woken: Whether something was asked that creates a context, although this process had never used the device.
        broken: The name of a question that is answered with an error from now on; `ALL` for every one.
        failures: How often one was.
        fraction: What `set_per_process_memory_fraction` was called with.
        others: What other processes have.
        private: Of what is reserved and of what is allocated, the share of a private pool (of a CUDA graph).
        walks: How often the segments were asked for.
    """

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.initialised = True
        self.broken = ""
        self.failures = 0
        self.allocated = self.peak = self.reserved = self.others = 0.0
        self.fraction = 1.0
        self.private = (0.0, 0.0)
        self.walks = 0
        self.used = self.woken = False

    def hold(self, allocated: float) -> None:
        """So much is allocated from now on; the peak and the reserved memory follow as on a real device."""
        self.initialised = self.used = True
        self.allocated = allocated
        self.peak = max(self.peak, allocated)
        self.reserved = max(self.reserved, allocated)

    def spike(self, mib: float) -> None:
        """Allocate so much more and free it again."""
        before = self.allocated
        self.hold(before + mib)
        self.hold(before)

    def stats(self, index: int) -> dict[str, object]:
        assert self.initialised, "asking an uninitialised device for its statistics crashes some versions of torch"
        counts = {"current": int(self.allocated * MIB), "peak": int(self.peak * MIB)}
        held = {"current": int(self.reserved * MIB), "peak": int(self.reserved * MIB)}
        tried = {"num_alloc_retries": 0, "num_ooms": 0}
        return {"allocated_bytes": {"all": counts}, "reserved_bytes": {"all": held}, **tried}

    def memory_info(self, index: int) -> tuple[int, int]:
        self.woken |= not self.used
        return int((TOTAL_MIB - self.reserved - self.others) * MIB), TOTAL_MIB * MIB

    def segments(self, mempool_id: object = None, include_traces: bool = True) -> list[dict[str, object]]:
        assert not include_traces, "the recorded history is long"
        self.walks += 1
        reserved, allocated = self.private
        sizes = (((0, 0), self.reserved - reserved, self.allocated - allocated), ((0, 3), reserved, allocated))
        return [
            {
                "device": self.index,
                "segment_pool_id": pool,
                "total_size": int(total * MIB),
                "allocated_size": int(used * MIB),
            }
            for pool, total, used in sizes
            if total
        ]

    def reset_peaks(self, index: int) -> None:
        self.woken |= not self.used
        self.peak = self.allocated

    def empty_cache(self) -> None:
        self.reserved = self.allocated

    def answer(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        """What answers this question as long as it is not `broken`."""

        @functools.wraps(answer)
        def ask(*arguments: Any, **keywords: Any) -> Any:
            if self.broken in (name, ALL):
                self.failures += 1
                raise getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: unspecified launch failure")
            return answer(*arguments, **keywords)

        return ask


def _unless(refused: bool, accelerator: torch.device) -> torch.device | None:
    return None if refused else accelerator


@contextmanager
def simulated_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    """torch answers as if this device were there."""
    with simulated_devices(monkeypatch, 1) as (device,):
        yield device


@contextmanager
def simulated_devices(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[list[SimulatedDevice]]:
    """torch answers as if so many devices were there; the first is the current one."""
    devices = [SimulatedDevice(index) for index in range(number)]
    first = devices[0]
    caches = allocator._accelerator_kind, allocator._allocator, peak_windows.peaks_of

    def segments(mempool_id: object = None, include_traces: bool = True) -> list[dict[str, object]]:
        return [one for device in devices for one in device.segments(mempool_id, include_traces)]

    def empty_cache() -> None:
        for device in devices:
            device.empty_cache()

    with monkeypatch.context() as patch:
        # torch itself, which asks whether the device can be used now, is told the truth
        accelerator = torch.device("cuda")
        questions = (
            (
                torch.accelerator,
                "current_accelerator",
                lambda check_available=False: _unless(check_available, accelerator),
            ),
            (torch.accelerator, "device_count", lambda: number),
            (torch.cuda, "get_device_properties", lambda index: PROPERTIES),
            (torch.cuda, "is_initialized", lambda: first.initialised),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "get_allocator_backend", lambda: "native"),
            (torch.cuda, "reset_peak_memory_stats", lambda index: devices[index].reset_peaks(index)),
            (torch.cuda, "mem_get_info", lambda index: devices[index].memory_info(index)),
            (torch.cuda, "get_per_process_memory_fraction", lambda index: devices[index].fraction),
            (torch.cuda, "memory_snapshot", segments),
            (torch.cuda, "empty_cache", empty_cache),
            (torch._C, "_cuda_memoryStats", lambda index: devices[index].stats(index)),
            (torch._C, "_cuda_isHistoryEnabled", lambda: False),
        )
        for owner, name, answer in questions:
            patch.setattr(owner, name, first.answer(name, answer), raising=False)
        for cache in caches:
            cache.cache_clear()
        allocator.ASK.failure = []
        yield devices
    for cache in caches:
        cache.cache_clear()
    allocator.ASK.failure = []  # no real device comes back
