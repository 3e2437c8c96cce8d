"""Small tools that say how much memory is held, now and here, in a script without a trainer."""

from forgather_mem.trackers.blocks import TrackedBlock, monitor_memory, track_memory
from forgather_mem.trackers.monitors import EpochMemoryMonitor, MemoryMonitor
from forgather_mem.trackers.records import BatchMemoryProfiler, MemoryRecord, MemoryTracker

__all__ = [
    "BatchMemoryProfiler",
    "EpochMemoryMonitor",
    "MemoryMonitor",
    "MemoryRecord",
    "MemoryTracker",
    "TrackedBlock",
    "monitor_memory",
    "track_memory",
]
