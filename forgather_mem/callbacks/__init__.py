"""The trainer callbacks. Using one imports transformers.

Each is loaded on first use: a training that is only watched does not wait for the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MODULE_OF = {
    "ClearCacheCallback": "clear_cache",
    "CudaGarbageCollector": "collectors",
    "GradLogger": "training.grad_logger",
    "InfoCallback": "training.info",
    "JsonLogger": "training.json_logger",
    "JsonMemoryLogger": "memory_loggers",
    "LeakDetector": "leak_detector",
    "MemoryAlert": "memory_alert",
    "MemoryCallback": "memory_callback",
    "MinimumMemory": "minimum_memory",
    "OOMReporter": "oom_reporter",
    "PeakMemory": "memory_loggers",
    "ProfileMemory": "profile_memory",
    "ProgressCallback": "training.progress",
    "ScheduledGarbageCollector": "gc_governor",
    "SimpleGarbageCollector": "collectors",
    "TBLogger": "training.tb_logger",
    "TBMemoryLogger": "memory_loggers",
    "TextgenCallback": "training.textgen",
    "estimate_minimum": "minimum_memory",
}
__all__ = [
    "ClearCacheCallback",
    "CudaGarbageCollector",
    "GradLogger",
    "InfoCallback",
    "JsonLogger",
    "JsonMemoryLogger",
    "LeakDetector",
    "MemoryAlert",
    "MemoryCallback",
    "MinimumMemory",
    "OOMReporter",
    "PeakMemory",
    "ProfileMemory",
    "ProgressCallback",
    "ScheduledGarbageCollector",
    "SimpleGarbageCollector",
    "TBLogger",
    "TBMemoryLogger",
    "TextgenCallback",
    "estimate_minimum",
]

if TYPE_CHECKING:
    from forgather_mem.callbacks.clear_cache import ClearCacheCallback as ClearCacheCallback
    from forgather_mem.callbacks.collectors import CudaGarbageCollector as CudaGarbageCollector
    from forgather_mem.callbacks.collectors import SimpleGarbageCollector as SimpleGarbageCollector
    from forgather_mem.callbacks.gc_governor import ScheduledGarbageCollector as ScheduledGarbageCollector
    from forgather_mem.callbacks.leak_detector import LeakDetector as LeakDetector
    from forgather_mem.callbacks.memory_alert import MemoryAlert as MemoryAlert
    from forgather_mem.callbacks.memory_callback import MemoryCallback as MemoryCallback
    from forgather_mem.callbacks.memory_loggers import JsonMemoryLogger as JsonMemoryLogger
    from forgather_mem.callbacks.memory_loggers import PeakMemory as PeakMemory
    from forgather_mem.callbacks.memory_loggers import TBMemoryLogger as TBMemoryLogger
    from forgather_mem.callbacks.minimum_memory import MinimumMemory as MinimumMemory
    from forgather_mem.callbacks.minimum_memory import estimate_minimum as estimate_minimum
    from forgather_mem.callbacks.oom_reporter import OOMReporter as OOMReporter
    from forgather_mem.callbacks.profile_memory import ProfileMemory as ProfileMemory
    from forgather_mem.callbacks.training.grad_logger import GradLogger as GradLogger
    from forgather_mem.callbacks.training.info import InfoCallback as InfoCallback
    from forgather_mem.callbacks.training.json_logger import JsonLogger as JsonLogger
    from forgather_mem.callbacks.training.progress import ProgressCallback as ProgressCallback
    from forgather_mem.callbacks.training.tb_logger import TBLogger as TBLogger
    from forgather_mem.callbacks.training.textgen import TextgenCallback as TextgenCallback


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
