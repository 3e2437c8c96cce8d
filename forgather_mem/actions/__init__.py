"""Actions: works that free memory. Each does one thing and reports its yield and cost."""

from forgather_mem.actions.adaptive import Adaptive
from forgather_mem.actions.clear import ClearCache
from forgather_mem.actions.collect import Collect
from forgather_mem.actions.freeze import HeapHold
from forgather_mem.actions.trim import TrimHost

__all__ = ["Adaptive", "ClearCache", "Collect", "HeapHold", "TrimHost"]
