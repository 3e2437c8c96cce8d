"""A frozen heap in which nobody looks for models and loaders: what was imported has none.

Our code looks for them in a heap that somebody has frozen by walking it, which takes a second for the million objects
of torch, transformers and all tests. To it nothing is frozen here but what is frozen after `freeze`. A plan unfreezes
the heap and collects it to look for them, which is half of its time: here what was imported stays frozen.
"""

import gc
import sys
from types import BuiltinFunctionType, ModuleType

from forgather_mem.probes import live_objects


class _Mark:
    """Made unfrozen: while the collector shows it, nothing has been frozen since."""


class _Collector(ModuleType):
    """The module `gc`, to the code that looks."""

    mark = _Mark()

    def __getattr__(self, name: str) -> object:
        return getattr(gc, name)

    def get_freeze_count(self) -> int:
        is_real = isinstance(gc.get_freeze_count, BuiltinFunctionType)
        return 0 if is_real and any(one is self.mark for one in gc.get_objects()) else gc.get_freeze_count()


class _KeepsFrozen(ModuleType):
    """The module `gc`, to the code that plans, which freezes what there is, and unfreezes it to look for models."""

    def __init__(self, *passed_over: str) -> None:
        super().__init__("gc")
        vars(self).update(dict.fromkeys(passed_over, int))

    def __getattr__(self, name: str) -> object:
        return getattr(gc, name)


_PLANNING = {
    "forgather_mem.planning.isolation.child": _KeepsFrozen("freeze"),
    "forgather_mem.planning.model": _KeepsFrozen("unfreeze"),
    "forgather_mem.diagnose.alerts.planned": _KeepsFrozen("unfreeze"),
}


def freeze() -> None:
    """Freeze all that is there."""
    gc.freeze()
    forget()


def forget() -> None:
    """What was frozen until now is out of sight."""
    _Collector.mark = _Mark()
    live_objects.gc = _Collector("gc")  # type: ignore[attr-defined]
    for name, collector in _PLANNING.items():
        if name in sys.modules:
            sys.modules[name].gc = collector  # type: ignore[attr-defined]
