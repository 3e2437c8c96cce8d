"""A device allocator on paper: nested statistics of the shape torch documents, and peaks that can be reset."""

from typing import Any

from forgather_mem.system.allocator import Allocator, Device
from forgather_mem.units import GIB

GROUPS = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
    "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip


def nested_stats(allocated: int = 3 * GIB, reserved: int = 4 * GIB, peak: int = 5 * GIB) -> dict[str, Any]:
    """What `torch._C._cuda_memoryStats` gives: 120 numbers, as `torch.cuda.memory_stats` documents them."""

    def group(current: int, peak: int) -> dict[str, Any]:
        def pool(share: int) -> dict[str, int]:
            return {"current": current // share, "peak": peak // share, "allocated": 9 * peak, "freed": 8 * peak}

        return {"all": pool(1), "small_pool": pool(8), "large_pool": pool(2)}

    stats: dict[str, Any] = {name: group(17, 40) for name in GROUPS}
    stats["allocated_bytes"] = group(allocated, peak)
    stats["reserved_bytes"] = group(reserved, max(reserved, peak))
    for name in ("oversize_allocations", "oversize_segments"):
        stats[name] = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    return stats | {
        "num_alloc_retries": 2,
        "num_ooms": 1,
        "max_split_size": -1,
        "num_sync_all_streams": 0,
        "num_device_alloc": 90,
        "num_device_free": 3,
    }


class PaperDevice:
    """A device with 16 GiB on which a test allocates by writing numbers."""

    def __init__(self) -> None:
        self.allocated = self.peak = self.reserved = 0
        self.free = 16 * GIB
        self.resets = 0

    def hold(self, allocated: int) -> None:
        self.allocated = allocated
        self.peak = max(self.peak, allocated)
        self.reserved = max(self.reserved, allocated)

    def stats(self) -> dict[str, Any]:
        return nested_stats(self.allocated, self.reserved, self.peak)

    def reset_peaks(self) -> None:
        self.resets += 1
        self.peak = self.allocated

    def memory_info(self) -> tuple[int, int]:
        return self.free - self.reserved, 16 * GIB

    def empty_cache(self) -> None:
        self.reserved = self.allocated

    def allocator(self, *, counts_retries: bool = True, with_peaks: bool = True) -> Allocator:
        return Allocator(
            kind="cuda",
            index=0,
            stats=self.stats,
            reset_peaks=self.reset_peaks if with_peaks else None,
            memory_info=self.memory_info,
            empty_cache=self.empty_cache,
            counts_retries=counts_retries,
            device=lambda: Device("cuda:0", "Paper", 16 * GIB),
        )
