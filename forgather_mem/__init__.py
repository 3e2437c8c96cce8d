"""Where the memory of a training went, when, and how to get it back.

Importing this package loads neither torch nor transformers nor yaml: every public name is loaded on first use.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # importing typing costs a megabyte and 4 ms, and the waiting parent must stay small
__version__ = "0.1.0"

_MODULE_OF = {
    "attach": "load",
    "load_callbacks": "load",
    "Config": "config.environment",
    "ConfigEnvironment": "config.environment",
    "Policy": "config.policy.policy",
    "TemplateError": "errors",
    "Rule": "telemetry.rule",
    "Every": "telemetry.triggers",
    "AtEvent": "telemetry.triggers",
    "Above": "telemetry.triggers",
    "MemoryMonitor": "trackers",
    "MemoryTracker": "trackers",
    "EpochMemoryMonitor": "trackers",
    "BatchMemoryProfiler": "trackers",
    "TrainingLoop": "loops.training_loop",
    "track_memory": "trackers",
    "monitor_memory": "trackers",
    "release_memory": "reclaim.release",
    "cleanup": "reclaim.release",
    "cleanup_after": "reclaim.release",
    "retry_on_oom": "reclaim.retry",
}
__all__ = ["__version__", *_MODULE_OF]

if TYPE_CHECKING:
    from typing import Any

    from forgather_mem.config.environment import Config as Config
    from forgather_mem.config.environment import ConfigEnvironment as ConfigEnvironment
    from forgather_mem.config.policy.policy import Policy as Policy
    from forgather_mem.errors import TemplateError as TemplateError
    from forgather_mem.load import attach as attach
    from forgather_mem.load import load_callbacks as load_callbacks
    from forgather_mem.loops.training_loop import TrainingLoop as TrainingLoop
    from forgather_mem.reclaim.release import cleanup as cleanup
    from forgather_mem.reclaim.release import cleanup_after as cleanup_after
    from forgather_mem.reclaim.release import release_memory as release_memory
    from forgather_mem.reclaim.retry import retry_on_oom as retry_on_oom
    from forgather_mem.telemetry.rule import Rule as Rule
    from forgather_mem.telemetry.triggers import Above as Above
    from forgather_mem.telemetry.triggers import AtEvent as AtEvent
    from forgather_mem.telemetry.triggers import Every as Every
    from forgather_mem.trackers import BatchMemoryProfiler as BatchMemoryProfiler
    from forgather_mem.trackers import EpochMemoryMonitor as EpochMemoryMonitor
    from forgather_mem.trackers import MemoryMonitor as MemoryMonitor
    from forgather_mem.trackers import MemoryTracker as MemoryTracker
    from forgather_mem.trackers import monitor_memory as monitor_memory
    from forgather_mem.trackers import track_memory as track_memory


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
