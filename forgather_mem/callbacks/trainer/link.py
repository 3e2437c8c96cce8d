"""The link to a Trainer: wraps its methods to see what happens between events. Nothing else wraps them.

The wrappers are set on the trainer object, not on its class, during a training; the link itself stands beside it. No
event is fired when an exception leaves the training loop. transformers 5 runs the loop in parts, which are looked up
when they are called: they are wrapped when a training begins, and nothing stays. Where the loop is one method
(transformers 4, a subclass with a loop of its own, Forgather) it is running by then, so a wrapper around it stays
between trainings. It is not around `train` itself: a wrapper of that must hold the trainer, or `Trainer(...).train()`
would lose it midway, and then the trainer keeps itself and its model alive until some garbage collection.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forgather_mem.callbacks.trainer.calling import WHOLE, caller
from forgather_mem.callbacks.trainer.method_patches import Arguments, Around, Call, Keywords, MethodPatch, MethodPatches
from forgather_mem.engine.settings import settings_of_trainer
from forgather_mem.source.source_lines import is_our_class
from forgather_mem.telemetry.beside import Beside, marked
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import RunInfo

if TYPE_CHECKING:
    from forgather_mem.engine.run import Run

# For a callback added too late to wrap the whole training, which is already running: its parts, outermost first, of
# transformers 5 and then 4, each with its owner. An exception that leaves one of them ends the training.
_PARTS = (("", "_run_epoch"), ("", "_evaluate"), ("", "_finalize_training"), ("callback_handler", "on_epoch_begin"))
_SMALL_PARTS = (("", "get_batch_samples"), ("", "training_step"), ("callback_handler", "call_event"))
# The objects that a trainer passes to callbacks.
_OBJECTS = ("model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader")
# Methods of a `transformers.Trainer` whose time is a phase; the accelerator's and the optimizer's come in addition.
PHASE_OF_METHOD = {
    "get_batch_samples": "data", "compute_loss": "forward", "evaluation_loop": "evaluate", "_save_checkpoint": "save",
}  # fmt: skip
# The same for Forgather's trainer, where one method does both passes and calls the other for the second.
PHASE_OF_FORGATHERS = {"_forward_backward_step": "forward", "_backward": "backward", "_eval_loop": "evaluate"}
_END = object()


class Link:
    """The wrapped methods of one trainer.

    Args:
        trainer: A `transformers.Trainer` or an object that behaves like one.

    Attributes:
        trainer: A weak reference to it.
        wrapped: What stands around methods until the run ends.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = weakref.ref(trainer)
        self._run: Run | None = None
        self._inside = False  # whether the current training went through our wrapper
        self._tells_phases = False  # whether phases are reported to the run
        self.wrapped = MethodPatches()
        self._lasting = MethodPatches()  # until no callback needs the link
        self._of_one_training = False  # whether there will be another `on_init_end` before the next one
        self.handles: dict[str, object] = {}  # handles returned by `attach`, by template
        self.users = marked()  # callbacks that need the link between trainings

    @staticmethod
    def of(trainer: object, user: object) -> Link:
        """The trainer's link, created if missing."""
        link = LINKS.get(trainer)
        if link is None:
            link = LINKS[trainer] = Link(trainer)
        link.users[user] = True
        return link

    def stay(self, fence: FailureGuard | None = None) -> None:
        """Wrap the training loop, also between trainings, as long as one of our users is among the callbacks.

        Forgather's trainer fires `on_init_end` inside each `train()`: its link lasts for that training only.
        """
        self._lasting.fence = fence or FailureGuard()
        trainer = self.trainer()
        self._of_one_training = caller(("train",), lambda owner: owner is trainer) is not None
        if trainer is None or _runs_in_parts(trainer):
            return
        for name in WHOLE:
            if not isinstance(trainer.__dict__.get(name), MethodPatch):
                self._lasting.wrap(trainer, name, functools.partial(_training, self))

    def begin(self, run: Run, *, phases: bool) -> None:
        """Serve this run until it closes: always exceptions; trainer logs and phases if they are needed."""
        trainer = self.trainer()
        if trainer is None:
            return
        if self._run is not run:
            self._unwrap()  # in a forked child: the parent's run is not ended there
            self._run = run
            run.trainer = self.trainer
            self.wrapped.fence = run.fence
            run.at_close(self.end)
            known = sys.modules.get("forgather_mem.planning.result")
            if known is not None and (plan := known.PLANS.get(trainer)) is not None:  # of `forgather_mem.plan`
                run.facts.header = replace(run.facts.header, plan=plan.to_dict())
            users = [one for one in self.callbacks() if not is_our_class(type(one))]
            run.facts.settings.update(settings_of_trainer(trainer, users))
            if not self._inside:
                self._wrap_parts(trainer)
            self.wrapped.wrap(trainer, "log", functools.partial(_log, run))
            self._fire_before_the_optimizer(trainer, run)
        if phases and not self._tells_phases:
            self._tells_phases = True
            _wrap_phases(self.wrapped, trainer, run)

    def callbacks(self) -> list[Any]:
        """All of the trainer's callbacks: transformers keeps them in a handler, Forgather in the trainer itself."""
        trainer = self.trainer()
        return list(getattr(getattr(trainer, "callback_handler", trainer), "callbacks", ()))

    def around_clipping(self, around: Around) -> bool:
        """Until the run ends, clip gradients through `around(call, arguments, keywords)`, which calls `call`.

        Returns:
            Whether the trainer clips gradients. Clipping may have two layers; `around` is then called for both.
        """
        trainer = self.trainer()
        owners = ((trainer, "_clip_grad_norm"), (getattr(trainer, "accelerator", None), "clip_grad_norm_"))
        for owner, name in owners:
            self.wrapped.wrap(owner, name, around)
        return any(hasattr(owner, name) for owner, name in owners)

    def mute(self, callback: object, events: Iterable[str]) -> None:
        """Until the run ends, withhold these events from another callback."""
        for event in events:
            self.wrapped.wrap(callback, f"on_{event}", lambda *called: None)

    def settle(self) -> None:
        """After a training, whatever failed at its end: restore all that the next one does not need."""
        self.end()
        needed = any(callback in self.users for callback in self.callbacks())
        if not needed or (self._of_one_training and not self.handles):
            self.detach()

    def end(self) -> None:
        """Restore all methods wrapped for this training; what others have replaced since is theirs and stays."""
        self._unwrap()
        if not self._lasting and not self.users and LINKS.get(trainer := self.trainer()) is self:
            LINKS.discard(trainer)

    def leave(self, users: Iterable[object]) -> None:
        """These callbacks no longer need the link; after the last of them everything is restored."""
        for user in users:
            self.users.discard(user)
        if not self.users:
            self.detach()

    def detach(self) -> None:
        """Restore everything."""
        self._lasting.unwrap_all()
        self.end()

    def close_run(self, error: BaseException | None = None) -> None:
        """The training that is running has ended, by this error or without. Idempotent."""
        if self._run is not None and error is not None:
            from forgather_mem.diagnose.oom.recognition import close_failed  # loaded since the training began

            # A callback before ours may have failed after a step that we have not been told of
            self._run.reach(getattr(getattr(self.trainer(), "state", None), "global_step", 0))
            close_failed(self._run, error)
        elif self._run is not None:
            self._run.close()

    # ---- inside ----

    def _unwrap(self) -> None:
        self._tells_phases = False
        self.wrapped.unwrap_all()

    def _fire_before_the_optimizer(self, trainer: object, run: Run) -> None:
        """Fire `pre_optimizer_step` from the optimizer, since Forgather's trainer has no such event."""
        optimizer: Any = getattr(trainer, "optimizer", None)
        if hasattr(trainer, "callback_handler") or not hasattr(optimizer, "register_step_pre_hook"):
            return

        def fire_all() -> None:
            owner: Any = self.trainer()
            objects = {name: getattr(owner, name, None) for name in _OBJECTS}
            for callback in self.callbacks():
                if callback in self.users:
                    callback.on_pre_optimizer_step(owner.args, owner.state, getattr(owner, "control", None), **objects)

        run.at_close(optimizer.register_step_pre_hook(lambda *_: run.fence.call("link", fire_all)).remove)

    def _wrap_parts(self, trainer: object) -> None:
        parts = _PARTS if hasattr(trainer, "_run_epoch") else _PARTS + _SMALL_PARTS
        for owner, name in parts:
            around = functools.partial(_last if name == "_finalize_training" else _whole, self)
            self.wrapped.wrap(getattr(trainer, owner, None) if owner else trainer, name, around)
        for callback in self.callbacks():  # those behind us have not seen `train_begin` yet
            is_plain = inspect.getattr_static(callback, "__getattribute__") is object.__getattribute__
            # A class of its own way to look up names may act in the lookup, which a wrapper does once more
            if is_plain and callback not in self.users:
                self.wrapped.wrap(callback, "on_train_begin", functools.partial(_whole, self))


# A single instance, because a trainer has no other place than itself
LINKS = Beside[Link]()


def link_of(run: RunInfo) -> Link | None:
    """The link of this run; None without one."""
    return LINKS.get(run.trainer())


def _training(link: Link, call: Call, arguments: Arguments, keywords: Keywords) -> object:
    link._inside = True
    fence = link._lasting.fence or FailureGuard()
    try:
        result = _whole(link, call, arguments, keywords)
        fence.call("the end of a training", link.close_run)
        return result
    except BaseException as error:
        fence.call("the end of a training", link.close_run, error)  # what a Ctrl-C while it closed has left undone
        raise
    finally:
        link._inside = False
        link._run = None
        fence.call("the end of a training", link.settle)


def _whole(link: Link, call: Call, arguments: Arguments, keywords: Keywords) -> object:
    try:
        return call(*arguments, **keywords)
    except BaseException as error:
        try:
            link.close_run(error)
        except BaseException:
            link.close_run(error)  # what a Ctrl-C while it closed has left undone
            raise
        link._run = None
        raise


def _last(link: Link, *called: Any) -> object:
    """The last part of a training; a callback that was removed meanwhile has not seen its end."""
    result: object = _whole(link, *called)
    link.close_run()
    link._run = None
    return result


def _runs_in_parts(trainer: object) -> bool:
    """Whether the trainer runs transformers' own loop, in its parts."""
    loop = getattr(type(trainer), WHOLE[0], None)
    return getattr(loop, "__module__", "") == "transformers.trainer" and hasattr(trainer, _PARTS[0][1])


def _log(run: Run, call: Call, arguments: Arguments, named: Keywords) -> object:
    """Logs with our numbers in a copy of the dict: the caller's own (an evaluation's metrics) is unchanged."""
    logs = arguments[0] if arguments else named.get("logs")
    if isinstance(logs, dict) and (ours := run.fence.call("log values", run.log_values, logs)):
        logs = {**logs, **ours}
        arguments, named = ((logs, *arguments[1:]), named) if arguments else (arguments, {**named, "logs": logs})
    return call(*arguments, **named)


# ---- phases ----


def _wrap_phases(wrapped: MethodPatches, trainer: object, run: Run) -> None:
    """Report this trainer's phases to the run, as long as the methods stay wrapped."""
    run.phases.enter("startup")
    for name, phase in (PHASE_OF_METHOD | PHASE_OF_FORGATHERS).items():
        wrapped.wrap(trainer, name, functools.partial(_in_phase, run, phase))
    handler = getattr(trainer, "callback_handler", None)
    if handler is None:
        wrapped.wrap(trainer, "_dataloader_iter", functools.partial(_batches, run))
        manager = getattr(trainer, "checkpoint_manager", None)
        wrapped.wrap(manager, "save_checkpoint", functools.partial(_in_phase, run, "save"))
        optimizer: Any = getattr(trainer, "optimizer", None)
        if hasattr(optimizer, "register_step_pre_hook"):  # no event marks the start of its step

            def tell(change: Callable[[str], object], *_: object) -> None:
                run.fence.call("phases", change, "optimizer")

            run.at_close(optimizer.register_step_pre_hook(functools.partial(tell, run.phases.enter)).remove)
            run.at_close(optimizer.register_step_post_hook(functools.partial(tell, run.phases.leave)).remove)
        return
    accelerator = getattr(trainer, "accelerator", None)
    wrapped.wrap(accelerator, "backward", functools.partial(_in_phase, run, "backward"))
    engine = getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)
    wrapped.wrap(engine, "step", functools.partial(_engine_steps, run))
    wrapped.wrap(handler, "on_pre_optimizer_step", functools.partial(_optimizer_begins, run))
    wrapped.wrap(handler, "on_optimizer_step", functools.partial(_optimizer_ends, run))


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
        if phase == "evaluate" and run.facts.settings.get("evaluate.in"):  # what ran at its end is over
            run.fence.call("settings", run.tell_settings, {"evaluate.in": ""})
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


def _batches(run: Run, call: Callable[..., Iterable[object]], given: Arguments, keywords: Keywords) -> Iterator[object]:
    """Yields what the method yields; each wait for the next item is the phase "data"."""
    fence, phases = run.fence, run.phases
    batches = iter(call(*given, **keywords))
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
