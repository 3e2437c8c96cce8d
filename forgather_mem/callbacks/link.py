"""How do we learn what a Trainer does between events? By wrapping its methods, here and nowhere else.

The wrappers sit on the trainer object, not on its class, for the time of a training. One stays between
trainings: around the whole training loop, because an exception leaves it without any event. It is not
around `train` itself: a wrapper of `train` must hold the trainer, or `Trainer(...).train()` would lose it
on the way, and then the trainer holds itself and its model until some garbage collection.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from forgather_mem.callbacks.trainer_phases import wrap_phases
from forgather_mem.callbacks.wrapping import Around, Wrapper, Wrappers
from forgather_mem.diagnose.failing import close_failed
from forgather_mem.engine import Run

# Where the link hangs on the trainer, so that several callbacks share one.
LINK_ATTRIBUTE = "_forgather_mem_link"
# The whole training, of transformers' and of Forgather's trainer.
_WHOLE = ("_inner_training_loop", "_train_loop")
# For a callback that came too late to wrap the whole, which is running already: its parts, outermost first, of
# transformers 5 and then of 4, each with what it belongs to. An exception that leaves one of them ends the training.
_PARTS = (("", "_run_epoch"), ("", "_evaluate"), ("", "_finalize_training"), ("callback_handler", "on_epoch_begin"))
_SMALL_PARTS = (("", "get_batch_samples"), ("", "training_step"), ("callback_handler", "call_event"))
# What a trainer passes to callbacks.
_OBJECTS = ("model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader")
_BUILDS_OR_TRAINS = ("__init__", "train", *_WHOLE)


class Link:
    """The wrapped methods of one trainer.

    Args:
        trainer: A `transformers.Trainer` or what behaves like one. Only a weak reference is kept.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)
        self._run: Run | None = None
        self._inside = False  # whether the training that is running went through our wrapper
        self._tells_phases = False  # to the run
        self._wrapped = Wrappers()  # until the run ends
        self._lasting = Wrappers()  # until nobody needs us
        self.handles: dict[str, object] = {}  # what `attach` has given out, by template
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()  # the callbacks for which we stay between trainings

    @staticmethod
    def find(user: object) -> Link | None:
        """The link of the trainer that is calling us, made when there is none; None outside a trainer."""
        trainer = _calling_trainer()
        return Link.of(trainer, user) if trainer is not None else None

    @staticmethod
    def of(trainer: Any, user: object) -> Link:
        """The trainer's link, made when there is none."""
        link: Link | None = trainer.__dict__.get(LINK_ATTRIBUTE)
        if link is None or link._trainer() is not trainer:  # a copied trainer carries a copied link
            link = Link(trainer)
            setattr(trainer, LINK_ATTRIBUTE, link)
        link.users.add(user)
        return link

    @staticmethod
    def handles_of(trainer: Any) -> dict[str, object]:
        """The handles of the trainer's link; none where it has no link of its own."""
        link: Link | None = trainer.__dict__.get(LINK_ATTRIBUTE)
        return link.handles if link is not None and link.trainer() is trainer else {}

    def trainer(self) -> Any | None:
        """The trainer, as long as somebody else holds it."""
        return self._trainer()

    def stay(self) -> None:
        """Wrap the training loop, between trainings too, as long as one of our users is among the callbacks."""
        trainer = self._trainer()
        for name in _WHOLE:
            if trainer is not None and not isinstance(trainer.__dict__.get(name), Wrapper):
                self._lasting.wrap(trainer, name, functools.partial(_training, self))

    def begin(self, run: Run, *, phases: bool) -> None:
        """Serve this run until it closes: exceptions always, trainer logs and phases when somebody wants them."""
        trainer = self._trainer()
        if trainer is None:
            return
        if self._run is not run:
            self._run = run
            run.on_close.append(self.end)
            if not self._inside:
                self._wrap_parts(trainer)
            self._wrapped.wrap(trainer, "log", functools.partial(_log, run))
            self._tell_before_the_optimizer(trainer, run)
        if phases and not self._tells_phases:
            self._tells_phases = True
            wrap_phases(self._wrapped, trainer, run)

    def callbacks(self) -> list[Any]:
        """The trainer's callbacks, everybody's."""
        return _callbacks_of(self._trainer())

    def around_clipping(self, around: Around) -> bool:
        """Until the run ends, gradients are clipped by `around(call, arguments, keywords)`, which calls `call`.

        Returns:
            Whether the trainer has such a step. It may come in two layers, and `around` is then called for both.
        """
        trainer = self._trainer()
        owners = ((trainer, "_clip_grad_norm"), (getattr(trainer, "accelerator", None), "clip_grad_norm_"))
        for owner, name in owners:
            self._wrapped.wrap(owner, name, around)
        return any(hasattr(owner, name) for owner, name in owners)

    def silence(self, callback: object, events: Iterable[str]) -> None:
        """Until the run ends, another callback does not hear of these events."""
        for event in events:
            self._wrapped.wrap(callback, f"on_{event}", _skip)

    def around_training_step(self, around: Around) -> Callable[[], None]:
        """Until the run ends, a micro-batch is trained by `around(call, arguments, keywords)`, which calls `call`.

        Returns:
            A function that ends it earlier.
        """
        self._wrapped.wrap(self._trainer(), "training_step", around)
        return functools.partial(self._wrapped.unwrap, around)

    def end(self) -> None:
        """Put back every method of this training; what somebody has replaced meanwhile is theirs and stays."""
        self._run = None
        self._tells_phases = False
        self._wrapped.unwrap_all()
        if not self._lasting:
            self._go()

    def leave(self, users: Iterable[object]) -> None:
        """These callbacks need us no longer; after the last of them everything is put back."""
        for user in users:
            self.users.discard(user)
        if not self.users:
            self.detach()

    def detach(self) -> None:
        """Put back everything."""
        self._lasting.unwrap_all()
        self.end()

    def close_run(self, end: str) -> None:
        """The training that is running has ended."""
        if self._run is not None:
            self._run.close(end)

    def fail_run(self, error: BaseException) -> None:
        """The training that is running has ended by this error."""
        if self._run is not None:
            close_failed(self._run, error)

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()  # a pickled or copied trainer is a trainer without us

    # ---- inside ----

    def _go(self) -> None:
        trainer = self._trainer()
        if trainer is not None and trainer.__dict__.get(LINK_ATTRIBUTE) is self:
            delattr(trainer, LINK_ATTRIBUTE)

    def _tell_before_the_optimizer(self, trainer: Any, run: Run) -> None:
        """Ours hear `pre_optimizer_step` from the optimizer where the trainer, Forgather's, has no such event."""
        optimizer: Any = getattr(trainer, "optimizer", None)
        if hasattr(trainer, "callback_handler") or not hasattr(optimizer, "register_step_pre_hook"):
            return

        def tell(*_: Any) -> None:
            owner: Any = self._trainer()
            objects = {name: getattr(owner, name, None) for name in _OBJECTS}
            for callback in self.callbacks():
                if callback in self.users:
                    callback.on_pre_optimizer_step(owner.args, owner.state, getattr(owner, "control", None), **objects)

        run.on_close.append(optimizer.register_step_pre_hook(tell).remove)

    def _wrap_parts(self, trainer: Any) -> None:
        parts = _PARTS if hasattr(trainer, "_run_epoch") else _PARTS + _SMALL_PARTS
        for owner, name in parts:
            self._wrapped.wrap(
                getattr(trainer, owner, None) if owner else trainer, name, functools.partial(_whole, self)
            )


def _training(link: Link, call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    link._inside = True
    try:
        return _whole(link, call, arguments, keywords)
    finally:
        link._inside = False
        link.close_run("finished")
        if not any(callback in link.users for callback in _callbacks_of(link._trainer())):
            link.detach()


def _whole(link: Link, call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    try:
        return call(*arguments, **keywords)
    except (KeyboardInterrupt, SystemExit):
        link.close_run("interrupted")
        raise
    except BaseException as error:
        link.fail_run(error)
        raise


def _log(run: Run, call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The trainer's log line with our numbers in a copy: the caller's dict (an evaluation's metrics) stays as it is."""
    ours = run.log_values()
    if ours and arguments and isinstance(arguments[0], dict):
        arguments = ({**arguments[0], **ours}, *arguments[1:])
    elif ours and isinstance(keywords.get("logs"), dict):
        keywords = {**keywords, "logs": {**keywords["logs"], **ours}}
    return call(*arguments, **keywords)


def _skip(call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    return None


def _callbacks_of(trainer: Any) -> list[Any]:
    """The trainer's callbacks: transformers keeps them in a handler, Forgather in the trainer."""
    owner = getattr(trainer, "callback_handler", trainer)
    return list(getattr(owner, "callbacks", ()))


def fellow_callbacks() -> list[Any]:
    """All callbacks of the handler that is calling us, as transformers has one; none where another thing calls."""
    handler = _caller(("call_event",), lambda owner: hasattr(owner, "callbacks"))
    return list(handler.callbacks) if handler is not None else []


def _calling_trainer() -> Any | None:
    """The trainer whose constructor or training is calling us."""
    trainer = _caller(_BUILDS_OR_TRAINS, lambda owner: hasattr(owner, "train") and hasattr(owner, "add_callback"))
    return None if getattr(trainer, "links_itself", False) else trainer


def _caller(names: Iterable[str], fits: Callable[[Any], bool]) -> Any | None:
    """The nearest object that is calling us by a method of one of these names, found by walking up the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in names and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            variables = frame.f_locals
            owner = variables.get("self")
            if isinstance(variables, dict):  # before Python 3.13 the frame keeps this copy, with the batch in it
                variables.clear()
            if owner is not None and fits(owner):
                return owner
        frame = frame.f_back
    return None


def _nothing() -> None:
    return None
