"""`gc.freeze` for trainings in a process whose heap stays frozen: our code finds frozen only what it has frozen itself.

Unfrozen, the heap of a process that has imported torch, transformers and all tests takes half a second to collect, and
our callbacks collect several times in each training. What freezing does to objects is in tests/actions/test_freeze.py
and tests/callbacks/test_gc_governor.py, on a heap that is really unfrozen.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class SimulatedFreezing:
    """Whether somebody has frozen since the last `unfreeze`, and nothing else."""

    def __init__(self) -> None:
        self._frozen = False

    def freeze(self) -> None:
        self._frozen = True

    def unfreeze(self) -> None:
        self._frozen = False

    def get_freeze_count(self) -> int:
        """Any number above 0 where something is frozen."""
        return 400_000 if self._frozen else 0


@contextmanager
def simulated_freezing() -> Iterator[None]:
    """Meanwhile `gc` answers as if nothing had been frozen before."""
    freezing = SimulatedFreezing()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("freeze", "unfreeze", "get_freeze_count"):
            patch.setattr(gc, name, getattr(freezing, name))
        yield
