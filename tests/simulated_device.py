"""An accelerator for machines that have none: torch's own questions to its allocator, answered by numbers.

What is simulated is torch (`torch.cuda`, `torch._C`), never our own code. The nested statistics have the
shape that `torch._C._cuda_memoryStats` gives on a real card.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from forgather_mem.probes import allocator, windows
from forgather_mem.units import MIB

TOTAL_MIB = 8192


class SimulatedDevice:
    """What torch's allocator holds; sizes in MiB. `initialised` is False until the script uses the device."""

    def __init__(self) -> None:
        self.initialised = True
        self.allocated = self.peak = self.reserved = 0.0

    def hold(self, allocated: float) -> None:
        """So much is allocated from now on; the peak and the reserved memory follow as on a real device."""
        self.initialised = True
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
        return {"allocated_bytes": {"all": counts}, "reserved_bytes": {"all": held}}

    def memory_info(self, index: int) -> tuple[int, int]:
        return int((TOTAL_MIB - self.reserved) * MIB), TOTAL_MIB * MIB

    def reset_peaks(self, index: int) -> None:
        self.peak = self.allocated

    def empty_cache(self) -> None:
        self.reserved = self.allocated


@contextmanager
def simulated_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    """torch answers as if this device were there."""
    device = SimulatedDevice()
    caches = (allocator._accelerator_kind, allocator._allocator, windows._device_windows)
    with monkeypatch.context() as patch:
        # torch itself, which asks whether the device can be used now, is told the truth
        accelerator = torch.device("cuda")
        patch.setattr(
            torch.accelerator,
            "current_accelerator",
            lambda check_available=False: None if check_available else accelerator,
        )
        patch.setattr(torch.cuda, "is_initialized", lambda: device.initialised)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
        patch.setattr(torch.cuda, "reset_peak_memory_stats", device.reset_peaks)
        patch.setattr(torch.cuda, "mem_get_info", device.memory_info)
        patch.setattr(torch.cuda, "empty_cache", device.empty_cache)
        patch.setattr(torch._C, "_cuda_memoryStats", device.stats, raising=False)
        for cache in caches:
            cache.cache_clear()
        yield device
    for cache in caches:
        cache.cache_clear()
