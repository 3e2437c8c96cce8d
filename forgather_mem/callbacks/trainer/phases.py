"""Maps methods of a trainer to the phases of a step, for transformers' trainer and for Forgather's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from forgather_mem.callbacks.trainer.method_patches import (
    Arguments,
    Call,
    Keywords,
    MethodPatch,
    MethodPatches,
    without_ours,
)

if TYPE_CHECKING:
    from forgather_mem.engine.run import Run

# Methods of a `transformers.Trainer` whose time is a phase; the accelerator's and the optimizer's come in addition.
PHASE_OF_METHOD = {
    "get_batch_samples": "data",
    "compute_loss": "forward",
    "evaluation_loop": "evaluate",
    "_save_checkpoint": "save",
}
# The same for Forgather's trainer, where one method does both passes and calls the other for the second.
PHASE_OF_FORGATHERS = {"_forward_backward_step": "forward", "_backward": "backward", "_eval_loop": "evaluate"}
_END = object()


def wrap_phases(wrapped: MethodPatches, trainer: object, run: Run) -> None:
    """Report this trainer's phases to the run, as long as the methods stay wrapped."""
    run.phases.enter("startup")
    for name, phase in (PHASE_OF_METHOD | PHASE_OF_FORGATHERS).items():
        wrapped.wrap(trainer, name, (run, phase), PhaseWrapper)
    handler = getattr(trainer, "callback_handler", None)
    if handler is None:
        _wrap_forgathers(wrapped, trainer, run)
        return
    accelerator = getattr(trainer, "accelerator", None)
    wrapped.wrap(accelerator, "backward", (run, "backward"), PhaseWrapper)
    engine = getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)
    wrapped.wrap(engine, "step", (run, "optimizer"), _EngineStep)
    wrapped.wrap(handler, "on_pre_optimizer_step", functools.partial(_optimizer_begins, run))
    wrapped.wrap(handler, "on_optimizer_step", functools.partial(_optimizer_ends, run))


def _wrap_forgathers(wrapped: MethodPatches, trainer: object, run: Run) -> None:
    wrapped.wrap(trainer, "_dataloader_iter", functools.partial(_batches, run))
    manager = getattr(trainer, "checkpoint_manager", None)
    wrapped.wrap(manager, "save_checkpoint", (run, "save"), PhaseWrapper)
    optimizer: Any = getattr(trainer, "optimizer", None)
    if hasattr(optimizer, "register_step_pre_hook"):  # no event marks the start of its step
        pairs = (
            (optimizer.register_step_pre_hook, run.phases.enter),
            (optimizer.register_step_post_hook, run.phases.leave),
        )
        for register, tell in pairs:
            run.at_close(register(functools.partial(_optimizer_hook, run, tell)).remove)


def _optimizer_hook(run: Run, tell: Callable[[str], object], *_: object) -> None:
    run.fence.call("phases", tell, "optimizer")


class PhaseWrapper(MethodPatch):
    """A method whose time is a phase; `around` is the run and the phase's name.

    It calls the method by itself and has the fence inside: five of them in a step are to cost no call more than needed.
    """

    def __call__(self, *arguments: object, **keywords: object) -> object:
        run, phase = self.around
        entered = False
        try:
            phases = run.phases
            if phase == "forward":
                phases.see_batch(arguments, keywords)
            entered = phases.enter(phase)
        except run.fence.kept(self.name):
            pass
        try:
            owner = self._owner() if self._owner is not None else None
            if owner is not None:
                result = self._function(owner, *arguments, **keywords)
            else:
                result = self._function(*arguments, **keywords)
        except BaseException as error:
            error.__traceback__ = without_ours(error.__traceback__)
            run.fence.call(self.name, phases.fail)
            raise
        finally:
            if entered:
                try:
                    phases.leave(phase)
                except run.fence.kept(self.name):
                    pass
        if entered and phase == "forward" and phases.on_output is not None:
            run.fence.call("settings", phases.on_output, result)
        # Early versions of transformers 4 ask for batches once more when an epoch has no further
        if phase == "data" and isinstance(result, tuple) and result[0] == []:
            run.fence.call(self.name, phases.no_step)
        return result


class _EngineStep(PhaseWrapper):
    """The optimizer step of DeepSpeed's engine, which accelerate calls inside its own `backward`."""

    def __call__(self, *arguments: object, **keywords: object) -> object:
        run, _ = self.around
        run.fence.call(self.name, run.phases.leave, "backward")  # the pass itself is over
        try:
            return super().__call__(*arguments, **keywords)
        except BaseException as error:
            error.__traceback__ = without_ours(error.__traceback__)
            raise


def _batches(
    run: Run, call: Callable[..., Iterable[object]], arguments: Arguments, keywords: Keywords
) -> Iterator[object]:
    """Yields what the method yields; each wait for the next item is the phase "data"."""
    fence, phases = run.fence, run.phases
    batches = iter(call(*arguments, **keywords))
    while True:
        entered = fence.call("phases", phases.enter, "data")
        try:
            batch = next(batches, _END)
        finally:
            if entered:
                fence.call("phases", phases.leave, "data")
        if batch is _END:
            return
        yield batch
        del batch


def _optimizer_begins(run: Run, call: Call, arguments: Arguments, keywords: Keywords) -> object:
    result = call(*arguments, **keywords)
    run.phases.enter("optimizer")
    return result


def _optimizer_ends(run: Run, call: Call, arguments: Arguments, keywords: Keywords) -> object:
    run.phases.leave("optimizer")
    return call(*arguments, **keywords)
