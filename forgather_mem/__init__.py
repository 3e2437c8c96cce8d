"""Where the memory of a training went, when, and how to get it back.

Importing this package loads neither torch nor transformers nor yaml: every public name is found when it
is first used.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # importing typing costs a megabyte and 4 ms, and who waits for a command is to stay small
__version__ = "0.1.0"

_MODULE_OF = {
    "attach": "load",
    "load_callbacks": "load",
    "Config": "config.environment",
    "ConfigEnvironment": "config.environment",
    "Policy": "config.policy",
    "TemplateError": "errors",
    "Rule": "plan",
    "Every": "triggers",
    "AtEvent": "triggers",
    "Above": "triggers",
    "MemoryMonitor": "trackers",
    "MemoryTracker": "trackers",
    "EpochMemoryMonitor": "trackers",
    "BatchMemoryProfiler": "trackers",
    "TrainingLoop": "loop",
    "track_memory": "trackers",
    "monitor_memory": "trackers",
    "release_memory": "cleanup",
    "cleanup": "cleanup",
    "cleanup_after": "cleanup",
    "retry_on_oom": "retry",
}
__all__ = ["__version__", *_MODULE_OF]

if TYPE_CHECKING:
    from typing import Any

    from forgather_mem.cleanup import cleanup as cleanup
    from forgather_mem.cleanup import cleanup_after as cleanup_after
    from forgather_mem.cleanup import release_memory as release_memory
    from forgather_mem.config.environment import Config as Config
    from forgather_mem.config.environment import ConfigEnvironment as ConfigEnvironment
    from forgather_mem.config.policy import Policy as Policy
    from forgather_mem.errors import TemplateError as TemplateError
    from forgather_mem.load import attach as attach
    from forgather_mem.load import load_callbacks as load_callbacks
    from forgather_mem.loop import TrainingLoop as TrainingLoop
    from forgather_mem.plan import Rule as Rule
    from forgather_mem.retry import retry_on_oom as retry_on_oom
    from forgather_mem.trackers import BatchMemoryProfiler as BatchMemoryProfiler
    from forgather_mem.trackers import EpochMemoryMonitor as EpochMemoryMonitor
    from forgather_mem.trackers import MemoryMonitor as MemoryMonitor
    from forgather_mem.trackers import MemoryTracker as MemoryTracker
    from forgather_mem.trackers import monitor_memory as monitor_memory
    from forgather_mem.trackers import track_memory as track_memory
    from forgather_mem.triggers import Above as Above
    from forgather_mem.triggers import AtEvent as AtEvent
    from forgather_mem.triggers import Every as Every


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
