"""Meets the trainings of a watched command that have no Trainer: plain loops and Lightning."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from forgather_mem.launch.import_hook import TOLD_BY
from forgather_mem.system.call_wrapping import around_calls, surrounded
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.guard import FailureGuard

if TYPE_CHECKING:
    from forgather_mem.engine.run import Run
    from forgather_mem.loops.observed import ObservedLoop

_FEWEST = 16  # gradients may be accumulated before an optimizer that is made late takes its first step


def meet_optimizers() -> None:
    """torch's optimizers have just been imported: hear of their steps."""
    # A training needs the rest. Of the first step nothing is known yet, and what looks into a failure is not loaded:
    # with 4 MiB that failed where no byte was free, with 8 it did not (set on one script)
    del run_session.RESERVE[2 * run_session.RESERVE_BYTES // run_session.PIECE_BYTES :]
    torchs, torch = sys.modules["torch.optim.optimizer"], sys.modules["torch"]
    saves = around_calls(torch.save, functools.partial(_told, "save"), sees=True)
    torch.save = torch.serialization.save = saves  # type: ignore[attr-defined]  # under both names, else none is pickled
    _HEARS.passes = BackwardPasses(torch.autograd, functools.partial(_HEARS.steps_over, of_passes=True))
    torchs.register_optimizer_step_pre_hook(_HEARS.before)
    torchs.register_optimizer_step_post_hook(_HEARS.after)


def meet_methods(imported: str) -> None:
    """This module of `import_hook.TOLD_BY` has just been imported: hear of the calls of its methods."""
    for module, owner, method, what in TOLD_BY:
        if module == imported:
            surrounded(getattr(sys.modules[module], owner), method, functools.partial(_told, what), sees=True)


def _told(what: str, *given: Any) -> AbstractContextManager[object] | None:
    does = {"step": _HEARS.steps_over, "metrics": _computes_metrics}.get(what)
    if does is not None:
        does()
        return None
    if what.startswith("epoch"):
        return _epoch(needs_steps=what == "epoch")
    asked = _asked(given[0][0], given[0][1:], given[1]) if what == "generate" else {}
    if what in ("evaluate", "predict"):  # the fifth argument of Lightning's
        keeps = what == "predict" and [*given[0][4:5], given[1].get("return_predictions")][0] is not False
        what, asked = "evaluate", {"evaluate.in": "", "evaluate.keeps": "predictions" if keeps else ""}
    if (loop := _current()) is None:
        if _HEARS.num_apart >= _HEARS.most_apart:
            return None
        if what == "workers":  # of these nothing else is known before the first step
            from forgather_mem.engine.settings import settings_of_loaders

            _note_apart("other", settings_of_loaders([given[0][1]]))
        return _apart(what, asked) if what == "generate" or (what == "evaluate" and _open_run() is None) else None
    if what == "workers":
        return None
    loop.tell(asked)
    if what == "save" and given:
        targets = [one for one in (*given[0][1:2], given[1].get("f")) if hasattr(one, "getbuffer")]
        loop.tell({"save.into": "".join(type(one).__name__ for one in targets)})
    return loop.phase(what)


def _asked(model: object, arguments: Sequence[object], keywords: Mapping[str, object]) -> dict[str, str]:
    """What `generate` is asked for, as settings."""
    from forgather_mem.diagnose.oom.batch_shapes import batch_of
    from forgather_mem.engine.settings import asked_of_generate, sizes_of_generate

    config = keywords.get("generation_config") or getattr(model, "generation_config", None)
    told: dict[str, object] = {"returns": asked_of_generate(config, keywords), **sizes_of_generate(config, keywords)}
    if (batch := batch_of(arguments, keywords)) is not None:
        told |= {"rows": batch.rows, "length": batch.length}
    return {f"generate.{name}": str(value or "") for name, value in told.items()}


def _computes_metrics() -> None:
    """A Trainer has joined its predictions: until its evaluation ends a function of the user's works on them."""
    from forgather_mem.callbacks.trainer.calling import caller
    from forgather_mem.source.source_lines import line_name

    trainer = caller(("evaluation_loop", "prediction_loop"), lambda owner: hasattr(owner, "compute_metrics"))
    code = getattr(getattr(trainer, "compute_metrics", None), "__code__", None)
    of_each_batch = getattr(getattr(trainer, "args", None), "batch_eval_metrics", False)  # nothing is joined then
    if code is not None and not of_each_batch:
        run, line = _open_run(), line_name(code.co_filename, code.co_firstlineno)
        asked = {"evaluate.in": f"compute_metrics() at {line}"}
        _note_apart("evaluate", asked) if run is None else run.tell_settings(asked)


@contextmanager
def _apart(what: str, asked: Mapping[str, str]) -> Iterator[None]:
    """An evaluation or a generation in no loop of ours; what a Trainer's training tells counts while that goes on."""
    was = _HEARS.apart
    _HEARS.apart = _note_apart(what, asked)
    yield
    _HEARS.apart = was
    run_session.note(run_session.FIRST, f"{was}\t{_HEARS.num_apart}")


def _note_apart(what: str, asked: Mapping[str, str]) -> str:
    _HEARS.num_apart += 1  # each note is another one
    text = "\t".join((what, str(_HEARS.num_apart), *map("=".join, asked.items())))
    run_session.note(run_session.FIRST, text)
    return text


@contextmanager
def _epoch(needs_steps: bool) -> Iterator[None]:
    before = 0 if (loop := _current()) is None else loop.steps_done
    yield  # an epoch that an exception has left has not ended; in one without a step something is evaluated
    if (loop := _current()) is not None and not (needs_steps and loop.steps_done == before):
        loop.epoch_ended()


def _current() -> ObservedLoop | None:
    observed = sys.modules.get("forgather_mem.loops.observed")
    return observed.LOOPS.current() if observed is not None else None


def _open_run() -> Run | None:
    """A training of ours that goes on in this process, whoever tells of it."""
    known = sys.modules.get("forgather_mem.engine.run_of")
    return known.RUNS.other_open(None) if known is not None else None


def lightning_callbacks() -> list[object]:
    """For Lightning's `callbacks_factory` entry point: what each of its Trainers gets; nothing outside a run."""
    if run_session.FOLDER not in os.environ or run_session.is_off():
        return []
    found = FailureGuard().call("run", _of_lightning)
    return [] if found is None else found


def _of_lightning() -> list[object]:
    from forgather_mem.callbacks.lightning import LightningCallbacks
    from forgather_mem.launch.watching import callbacks_of_run

    return _Untold([LightningCallbacks(callbacks_of_run())])


class _Untold(list[object]):
    """Callbacks that Lightning takes without a line about them on stderr, which it prints for a list that is true."""

    def __bool__(self) -> bool:
        return False


class _FirstStep:
    """Observes the loop of the first step that belongs to no training of ours; until then nothing is imported.

    Attributes:
        passes: Tells of the steps of a loop without an optimizer.
        apart, num_apart: What goes on outside of loops, as it was noted, and how often that was.
        most_apart: So often it is noted: of notes a MiB is read.
    """

    most_apart = 2000

    def __init__(self) -> None:
        self.passes: BackwardPasses | None = None
        self._loop: ObservedLoop | None = None
        self._failed, self._lock = False, threading.Lock()
        self.apart, self.num_apart = "other", 0

    def before(self, optimizer: Any, *_: object) -> None:
        if self.passes is not None:
            self.passes.end()
            self.passes = None
        if (loop := self._loop or self._observed()) is not None:
            loop.before(optimizer)
            if loop.is_over and (following := self._observed()) is not None:  # it begins with this step
                following.before(optimizer)

    def steps_over(self, num_steps: int = 1, *, of_passes: bool = False) -> None:
        """So many steps are over in a loop without an optimizer, as its passes tell, or its framework."""
        if self.passes is not None and not of_passes:
            self.passes.end()
        if "torch" in sys.modules and (loop := self._observed()) is not None:
            loop.end_steps(num_steps, of_passes=of_passes)

    def after(self, optimizer: Any, *_: object) -> None:
        if self._loop is not None:
            self._loop.after(optimizer)

    def _observed(self) -> ObservedLoop | None:
        if self._loop is not None and self._loop.is_over:  # another may be observed from now on
            self._failed, self._loop = self._loop.has_failed, None
        if self._loop is not None or self._failed or run_session.is_off():  # in a plan's child
            return self._loop
        with self._lock:  # another thread may take its first step now
            # Else it is watched: by another training of ours, or after `watch()`
            if self._loop is None and _current() is None and _open_run() is None:
                self._loop = FailureGuard().call("run", _observed_loop)
                self._failed = self._loop is None
        return self._loop


_HEARS = _FirstStep()


def _observed_loop() -> ObservedLoop:
    from forgather_mem.system.time_budget import PREPARATION

    with PREPARATION:
        from forgather_mem.launch.watching import callbacks_of_run, output_folder
        from forgather_mem.loops.observed import LOOPS, ObservedLoop
        from forgather_mem.loops.state import default_arguments

    loop = ObservedLoop(default_arguments(output_folder()), callbacks_of_run, gives_way=True)
    LOOPS.add(loop)
    return loop


class BackwardPasses:
    """Tells the steps of a loop that changes its parameters by hand: one for each backward pass.

    Hears of each call of `torch.autograd.backward`, which `Tensor.backward` calls, as long as no optimizer is used.

    Args:
        autograd: The module `torch.autograd`.
        stepped: Called with a number of steps that are over: after 16 passes if no optimizer of torch is alive by
            then, and after each that follows.
    """

    def __init__(self, autograd: ModuleType, stepped: Callable[[int], object]) -> None:
        self._stepped, self._num_passes, self._is_over = stepped, 0, False
        self._undo = surrounded(autograd, "backward", self._pass)

    @contextmanager
    def _pass(self) -> Iterator[None]:
        if not self._num_passes:
            run_session.note(run_session.FIRST, "backward")
        yield  # a pass that an exception has left has not ended
        if not self._is_over:
            self._passed()

    def end(self) -> None:
        """An optimizer steps: nothing is told from now on."""
        self._is_over = True
        self._undo()

    def _passed(self) -> None:
        from forgather_mem.probes.live_objects import live_objects

        self._num_passes += 1
        if self._num_passes == 1:
            run_session.note(run_session.FIRST, "other")
        if self._num_passes == _FEWEST and live_objects(sys.modules["torch"].optim.Optimizer):
            self.end()
        elif self._num_passes >= _FEWEST:
            self._stepped(1 if self._num_passes > _FEWEST else _FEWEST)
