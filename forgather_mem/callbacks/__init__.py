"""The trainer callbacks. Importing this imports transformers."""

from forgather_mem.callbacks.clear_cache import ClearCacheCallback
from forgather_mem.callbacks.collectors import CudaGarbageCollector, SimpleGarbageCollector
from forgather_mem.callbacks.gc_governor import ScheduledGarbageCollector
from forgather_mem.callbacks.grad_logger import GradLogger
from forgather_mem.callbacks.info_callback import InfoCallback
from forgather_mem.callbacks.json_logger import JsonLogger
from forgather_mem.callbacks.memory_callback import MemoryCallback
from forgather_mem.callbacks.memory_loggers import JsonMemoryLogger, PeakMemory, TBMemoryLogger
from forgather_mem.callbacks.minimum_memory import MinimumMemory, estimate_minimum
from forgather_mem.callbacks.progress_callback import ProgressCallback
from forgather_mem.callbacks.tb_logger import TBLogger
from forgather_mem.callbacks.textgen_callback import TextgenCallback

__all__ = [
    "ClearCacheCallback",
    "CudaGarbageCollector",
    "GradLogger",
    "InfoCallback",
    "JsonLogger",
    "JsonMemoryLogger",
    "MemoryCallback",
    "MinimumMemory",
    "PeakMemory",
    "ProgressCallback",
    "ScheduledGarbageCollector",
    "SimpleGarbageCollector",
    "TBLogger",
    "TBMemoryLogger",
    "TextgenCallback",
    "estimate_minimum",
]
