"""The trainer callbacks. Importing this imports transformers."""

from forgather_mem.callbacks.clear_cache import ClearCacheCallback
from forgather_mem.callbacks.collectors import CudaGarbageCollector, SimpleGarbageCollector
from forgather_mem.callbacks.gc_governor import ScheduledGarbageCollector
from forgather_mem.callbacks.memory_callback import MemoryCallback
from forgather_mem.callbacks.memory_loggers import JsonMemoryLogger, PeakMemory, TBMemoryLogger

__all__ = [
    "ClearCacheCallback",
    "CudaGarbageCollector",
    "JsonMemoryLogger",
    "MemoryCallback",
    "PeakMemory",
    "ScheduledGarbageCollector",
    "SimpleGarbageCollector",
    "TBMemoryLogger",
]
