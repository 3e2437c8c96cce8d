"""How is memory given back? Actions do one thing each and report what it brought and what it cost."""

from forgather_mem.actions.adaptive import Adaptive
from forgather_mem.actions.clear import ClearCache
from forgather_mem.actions.collect import Collect
from forgather_mem.actions.heap import HeapHold
from forgather_mem.actions.trim import TrimHost

__all__ = ["Adaptive", "ClearCache", "Collect", "HeapHold", "TrimHost"]
