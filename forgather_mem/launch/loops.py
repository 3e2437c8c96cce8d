"""Meets the trainings of a watched command that have no Trainer: plain loops and Lightning."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from forgather_mem.system.call_wrapping import around_calls
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.guard import FailureGuard

if TYPE_CHECKING:
    from forgather_mem.loops.observed import ObservedLoop


def meet_optimizers() -> None:
    """torch's optimizers have just been imported: hear of their steps."""
    del run_session.RESERVE[run_session.RESERVE_BYTES // run_session.PIECE_BYTES :]  # a training needs the rest
    torchs, hears = sys.modules["torch.optim.optimizer"], _FirstStep()
    torchs.register_optimizer_step_pre_hook(hears.before)
    torchs.register_optimizer_step_post_hook(hears.after)


def meet_method(module: str, owner: str, method: str, what: str) -> None:
    """The module of this row of `import_hook.TOLD_BY` has just been imported: hear of the calls of its method."""
    cls = getattr(sys.modules[module], owner)
    setattr(cls, method, around_calls(getattr(cls, method), functools.partial(_told, what)))


def _told(what: str) -> AbstractContextManager[object]:
    if what.startswith("epoch"):
        return _epoch(needs_steps=what == "epoch")
    return nullcontext() if (loop := _current()) is None else loop.phase(what)


@contextmanager
def _epoch(needs_steps: bool) -> Iterator[None]:
    before = _steps_done()
    yield  # an epoch that an exception has left has not ended; in one without a step something is evaluated
    if (loop := _current()) is not None and not (needs_steps and _steps_done() == before):
        loop.epoch_ended()


def _steps_done() -> int:
    return 0 if (loop := _current()) is None else loop.steps_done


def _current() -> ObservedLoop | None:
    observed = sys.modules.get("forgather_mem.loops.observed")
    return observed.LOOPS.current() if observed is not None else None


def lightning_callbacks() -> list[Any]:
    """For Lightning's `callbacks_factory` entry point: what each of its Trainers gets; nothing outside a run."""
    if run_session.FOLDER not in os.environ or run_session.is_off():
        return []
    found = FailureGuard().call("run", _of_lightning)
    return [] if found is None else found


def _of_lightning() -> list[Any]:
    from forgather_mem.callbacks.lightning import LightningCallbacks
    from forgather_mem.launch.watching import callbacks_of_run

    return _Untold([LightningCallbacks(callbacks_of_run())])


class _Untold(list[Any]):
    """Callbacks that Lightning takes without a line about them on stderr, which it prints for a list that is true."""

    def __bool__(self) -> bool:
        return False


class _FirstStep:
    """Observes the loop of the first step that belongs to no training of ours; until then nothing is imported."""

    def __init__(self) -> None:
        self._loop: ObservedLoop | None = None
        self._failed, self._lock = False, threading.Lock()

    def before(self, optimizer: Any, *_: object) -> None:
        if (loop := self._loop or self._observed()) is not None:
            loop.before(optimizer)
            if loop.is_over and (following := self._observed()) is not None:  # it begins with this step
                following.before(optimizer)

    def after(self, optimizer: Any, *_: object) -> None:
        if self._loop is not None:
            self._loop.after(optimizer)

    def _observed(self) -> ObservedLoop | None:
        if self._loop is not None and self._loop.is_over:  # another may be observed from now on
            self._failed, self._loop = self._loop.has_failed, None
        if self._loop is not None or self._failed or run_session.is_off():  # in a plan's child
            return self._loop
        with self._lock:  # another thread may take its first step now
            if self._loop is None and not _is_watched():
                self._loop = FailureGuard().call("run", _observed_loop)
                self._failed = self._loop is None
        return self._loop


def _is_watched() -> bool:
    """Whether another training of ours runs, or `watch()` was called."""
    known = sys.modules.get("forgather_mem.engine.run_of")
    return _current() is not None or (known is not None and known.RUNS.other_is_open(None))


def _observed_loop() -> ObservedLoop:
    from forgather_mem.system.time_budget import PREPARATION

    with PREPARATION:
        from forgather_mem.launch.watching import arguments_of_run, callbacks_of_run
        from forgather_mem.loops.observed import LOOPS, ObservedLoop

    loop = ObservedLoop(arguments_of_run(), callbacks_of_run, gives_way=True)
    LOOPS.add(loop)
    return loop
