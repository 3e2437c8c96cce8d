"""`gc.freeze` for trainings in a process whose heap stays frozen: our code finds frozen only what it has frozen itself.

Unfrozen, the heap of a process that has imported torch, transformers and all tests takes half a second to collect, and
our callbacks collect several times in each training. What freezing does to objects is in tests/actions/test_freeze.py
and tests/callbacks/test_gc_governor.py, on a heap that is really unfrozen.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def simulated_freezing() -> Iterator[None]:
    """Meanwhile `gc` answers as if nothing had been frozen before."""
    frozen: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: frozen.add("something"))
        patch.setattr(gc, "unfreeze", frozen.clear)
        patch.setattr(gc, "get_freeze_count", lambda: 400_000 * len(frozen))  # any number above 0 where something is
        yield
