"""Which methods of a trainer are which phase of a step? Those of transformers' trainer, and of Forgather's."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from forgather_mem.callbacks.wrapping import Wrappers
from forgather_mem.engine import Run

# Methods of a `transformers.Trainer` whose time is a phase; besides them the accelerator's and the optimizer's.
PHASE_OF_METHOD = {
    "get_batch_samples": "data",
    "compute_loss": "forward",
    "evaluation_loop": "evaluate",
    "_save_checkpoint": "save",
}
# The same of Forgather's trainer, where one method does both passes and calls the other for the second.
PHASE_OF_FORGATHERS = {"_forward_backward_step": "forward", "_backward": "backward", "_eval_loop": "evaluate"}
_END = object()


def wrap_phases(wrapped: Wrappers, trainer: Any, run: Run) -> None:
    """Tell the run of this trainer's phases, as long as the methods stay wrapped."""
    run.phases.enter("startup")
    for name, phase in (PHASE_OF_METHOD | PHASE_OF_FORGATHERS).items():
        around = _forward if phase == "forward" else _phase
        wrapped.wrap(trainer, name, functools.partial(around, run, phase))
    handler = getattr(trainer, "callback_handler", None)
    if handler is None:
        _wrap_forgathers(wrapped, trainer, run)
        return
    wrapped.wrap(getattr(trainer, "accelerator", None), "backward", functools.partial(_phase, run, "backward"))
    wrapped.wrap(handler, "on_pre_optimizer_step", functools.partial(_optimizer_begins, run))
    wrapped.wrap(handler, "on_optimizer_step", functools.partial(_optimizer_ends, run))


def _wrap_forgathers(wrapped: Wrappers, trainer: Any, run: Run) -> None:
    wrapped.wrap(trainer, "_dataloader_iter", functools.partial(_batches, run))
    manager = getattr(trainer, "checkpoint_manager", None)
    wrapped.wrap(manager, "save_checkpoint", functools.partial(_phase, run, "save"))
    optimizer: Any = getattr(trainer, "optimizer", None)
    if hasattr(optimizer, "register_step_pre_hook"):  # no event tells when its step begins

        def begins(*_: Any) -> None:
            run.phases.enter("optimizer")

        def ends(*_: Any) -> None:
            run.phases.leave("optimizer")

        hooks = optimizer.register_step_pre_hook(begins), optimizer.register_step_post_hook(ends)
        run.on_close.extend(hook.remove for hook in hooks)


def _phase(run: Run, phase: str, call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    entered = run.phases.enter(phase)
    try:
        return call(*arguments, **keywords)
    except BaseException:
        run.phases.fail()
        raise
    finally:
        if entered:
            run.phases.leave(phase)


def _forward(
    run: Run, phase: str, call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    if run.phases.on_batch:
        began_s = time.perf_counter()
        for see in run.phases.on_batch:
            run.fence.call("batch", see, arguments, keywords)
        run.phases.watched_s += time.perf_counter() - began_s
    return _phase(run, phase, call, arguments, keywords)


def _batches(run: Run, call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Any]:
    """What the method yields; each wait for it is the phase "data"."""
    batches = iter(call(*arguments, **keywords))
    while True:
        with contextlib.ExitStack() as stack:
            if run.phases.enter("data"):
                stack.callback(run.phases.leave, "data")
            batch = next(batches, _END)
        if batch is _END:
            return
        yield batch
        del batch


def _optimizer_begins(run: Run, call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = call(*arguments, **keywords)
    run.phases.enter("optimizer")
    return result


def _optimizer_ends(run: Run, call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    run.phases.leave("optimizer")
    return call(*arguments, **keywords)
