from forgather_mem.trackers.blocks import TrackedBlock as TrackedBlock
from forgather_mem.trackers.blocks import monitor_memory as monitor_memory
from forgather_mem.trackers.blocks import track_memory as track_memory
from forgather_mem.trackers.monitors import EpochMemoryMonitor as EpochMemoryMonitor
from forgather_mem.trackers.monitors import MemoryMonitor as MemoryMonitor
from forgather_mem.trackers.records import BatchMemoryProfiler as BatchMemoryProfiler
from forgather_mem.trackers.records import MemoryRecord as MemoryRecord
from forgather_mem.trackers.records import MemoryTracker as MemoryTracker
