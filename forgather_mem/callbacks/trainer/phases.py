"""Maps methods of a trainer to the phases of a step, for transformers' trainer and for Forgather's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from forgather_mem.callbacks.trainer.method_patches import Arguments, Call, Keywords, MethodPatches

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
        wrapped.wrap(trainer, name, functools.partial(_in_phase, run, phase))
    handler = getattr(trainer, "callback_handler", None)
    if handler is None:
        _wrap_forgathers(wrapped, trainer, run)
        return
    accelerator = getattr(trainer, "accelerator", None)
    wrapped.wrap(accelerator, "backward", functools.partial(_in_phase, run, "backward"))
    engine = getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)
    wrapped.wrap(engine, "step", functools.partial(_engine_steps, run))
    wrapped.wrap(handler, "on_pre_optimizer_step", functools.partial(_optimizer_begins, run))
    wrapped.wrap(handler, "on_optimizer_step", functools.partial(_optimizer_ends, run))


def _wrap_forgathers(wrapped: MethodPatches, trainer: object, run: Run) -> None:
    wrapped.wrap(trainer, "_dataloader_iter", functools.partial(_batches, run))
    manager = getattr(trainer, "checkpoint_manager", None)
    wrapped.wrap(manager, "save_checkpoint", functools.partial(_in_phase, run, "save"))
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


def _in_phase(run: Run, phase: str, call: Call, arguments: Arguments, keywords: Keywords) -> object:
    """A method whose time is a phase. What fails here stops at the wrapper, which calls the method all the same."""
    phases = run.phases
    if phase == "forward":
        phases.see_batch(arguments, keywords)
    entered = phases.enter(phase)
    try:
        result = call(*arguments, **keywords)
    except BaseException:
        phases.fail()
        raise
    finally:
        if entered:
            phases.leave(phase)
    if entered and phase == "forward" and phases.on_output is not None:
        phases.on_output(result)
    # Early versions of transformers 4 ask for batches once more when an epoch has no further
    if phase == "data" and isinstance(result, tuple) and result[0] == []:
        phases.no_step()
    return result


def _engine_steps(run: Run, call: Call, arguments: Arguments, keywords: Keywords) -> object:
    """The optimizer step of DeepSpeed's engine, which accelerate calls inside its own `backward`."""
    run.phases.leave("backward")  # the pass itself is over
    return _in_phase(run, "optimizer", call, arguments, keywords)


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
