"""Tells the log of a planned training its phases and steps, and what tensors are for.

A Trainer's callbacks are called, since they may keep tensors, such as averaged weights. One that fails, because it
needs a value or would start a program, is left out, and said. All of it is set for good: it is called in a process that
plans and then ends.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from forgather_mem.planning.batches import PlannedShape, Trainer
from forgather_mem.planning.loop.loaders import Loaders
from forgather_mem.planning.loop.rounds import MOST_BATCHES, Rounds
from forgather_mem.planning.loop.stage import Stage
from forgather_mem.planning.pretending import tensors_among
from forgather_mem.planning.private_state import around_passes
from forgather_mem.planning.refusal import problem_of
from forgather_mem.planning.storage_log import StorageLog
from forgather_mem.source.source_lines import is_our_class

_NUMBERS = {"on_log": "logs", "on_evaluate": "metrics"}


def mark_phases(
    stage: Stage, models: Iterable[torch.nn.Module], then: Callable[[torch.optim.Optimizer], None], hear_calls: bool
) -> None:
    """The call of a model begins "forward", `backward()` "backward"; then it is "optimizer" until the next call.

    Args:
        stage: Its log is told of them, and of gradients and the state of optimizers.
        models: That are trained.
        then: Called with each optimizer that has stepped.
        hear_calls: Whether calls of the models are told of.
    """

    log = stage.log

    def forward(_: object, args: Sequence[object], keywords: Mapping[str, object]) -> None:
        if log.phase not in ("backward", "evaluate"):  # a whole model may be checkpointed
            log.begin("forward")
        for tensor in tensors_among((args, keywords)):
            if not tensor.requires_grad:
                log.saw(tensor, "batch")

    def saw_gradients(*of: torch.Tensor) -> None:
        for parameter in (*of, *(one for model in models for one in model.parameters())):  # which may be sharded later
            if parameter.grad is not None:
                log.saw(parameter.grad, "gradients")

    def stepping(optimizer: torch.optim.Optimizer, *_: object) -> None:
        saw_gradients(*(parameter for group in optimizer.param_groups for parameter in group["params"]))
        if log.phase != "backward":  # in the hook of a parameter it goes on
            log.begin("optimizer")

    def stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for tensor in tensors_among(list(optimizer.state.values())):
            log.saw(tensor, "optimizer")
        then(optimizer)

    for model in models if hear_calls else ():
        model.register_forward_pre_hook(forward, with_kwargs=True)
    around_passes(partial(_pass, log, saw_gradients), stage.notes)
    register_optimizer_step_pre_hook(stepping)
    register_optimizer_step_post_hook(stepped)


class _State(Protocol):
    """Of a Trainer's training."""

    epoch: float
    num_train_epochs: int


class EnoughSteps(BaseException):
    """Ends the loop: no handler of exceptions in it is meant."""


class Steps:
    """In place of the trainer's callbacks; its data loaders ask it, too.

    Args:
        stage: Its log is told of the steps, its notes of callbacks that are left out from where they failed.
        trainer: Whose callbacks are planned, and whose model is trained.
        most_batches: How many come in all, by how many an epoch has.
        at_end: Called after the last step.

    Attributes:
        log, notes: The stage's.
        wanted: The shape of batches.
        rounds: Asked whether another step is needed.
        again: Asks for another round.
        shapes: Of the batches.
        each: How many a step has.
        trains: Whether batches are no evaluation's.
        passes, skipped: None: no loader ends the loop.
        most_batches: As above.
    """

    passes = skipped = 0

    def __init__(
        self, stage: Stage, trainer: Trainer, most_batches: Callable[[int], int], at_end: Callable[..., None]
    ) -> None:
        self.log, self.notes, self.wanted, self._model = stage.log, stage.notes, stage.wanted.shape, trainer.model
        self.rounds, self.shapes, self.trains = Rounds(stage.log), list[PlannedShape](), True
        self.again, self.each = self.rounds.again, int(trainer.args.gradient_accumulation_steps)
        self.most_batches, self._at_end, self._loaders = most_batches, at_end, Loaders(self)
        self._callbacks = [  # ours and transformers' keep no tensors
            one
            for one in trainer.callback_handler.callbacks
            if not is_our_class(type(one)) and type(one).__module__.split(".")[0] != "transformers"
        ]
        self._was_last_of_epoch = self._is_after_end = False
        self._epoch = 1  # the next whose beginning callbacks have not heard of

    def is_first(self, number: int) -> bool:
        """Whether this batch belongs to the first step; one is loaded ahead."""
        return number < self.each and self.rounds.step == 1

    def rounds_of_evaluation(self) -> None:
        """None: it has as many batches as it is given."""

    def on_train_begin(self, *given: object, **keywords: object) -> None:
        for tensor in (*self._model.parameters(), *self._model.buffers()):  # as shards, where they are sharded
            self.log.saw(tensor, "parameters")
        self.log.begin("data")
        self._fire("on_train_begin", *given, **keywords)

    def on_step_end(self, arguments: object, state: _State, *given: object, **keywords: object) -> None:
        self._fire("on_step_end", arguments, state, *given, **keywords)
        goes_on = self.rounds.go_on() or self._loaders.are_awaited()
        is_last = self._is_after_end or not (goes_on or self._trains_more_later(arguments, state, *given, **keywords))
        if is_last and (state.epoch < 1 or self._was_last_of_epoch):
            held_bytes = self.log.alive_bytes()
            if not self._is_after_end:
                self.trains = False
                self._at_end(arguments, state, *given, **keywords)
                self.trains = True
            if self._is_after_end or self.log.alive_bytes() <= held_bytes:
                raise EnoughSteps
            self._is_after_end = True  # what the evaluation has left is there in the steps after it
        # The last step of an epoch has fewer batches, and none loaded ahead: the next one belongs to it, too
        self._was_last_of_epoch = is_last
        self.log.begin("data", self.rounds.step)

    def _trains_more_later(self, arguments: object, state: _State, *given: object, **keywords: object) -> bool:
        """Whether a callback of the user's lets more be trained in a later epoch: another round is to come then."""
        while self._callbacks and self._epoch < min(MOST_BATCHES, state.num_train_epochs):
            later = copy.copy(state)
            later.epoch = self._epoch
            self._epoch += 1
            self._fire("on_epoch_begin", arguments, later, *given, **keywords)
            if self.rounds.trains_more():
                self.again()
                return True
        return False

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return partial(self._fire, name)

    def _fire(self, event: str, arguments: object, *of_training: object, **keywords: object) -> None:
        """The state of the training, and what is to be done next, are copies."""
        numbers = _NUMBERS.get(event)
        if numbers is not None:  # whatever is asked for is one
            known = keywords.get(numbers, {})
            keywords[numbers] = defaultdict(
                lambda: 1.0, {"loss": 1.0, "eval_loss": 1.0, **cast(dict[str, float], known)}
            )
        for callback in self._callbacks[:]:
            call = getattr(callback, event)
            if call.__module__.startswith("transformers."):  # nothing
                continue
            self.log.making = "callbacks"
            try:
                call(arguments, *map(copy.copy, of_training), **keywords)
            except Exception as error:  # noqa: BLE001  # the callback's own
                self._callbacks.remove(callback)
                self.notes.append(f"{type(callback).__name__} is not in the plan: {problem_of(error)}")
            finally:
                self.log.making = None


def _pass(
    log: StorageLog, then: Callable[[], None], backward: Callable[..., object], *args: object, **keywords: object
) -> object:
    is_outer = log.phase != "backward"  # checkpointing calls it again, inside
    log.begin("backward")
    result = backward(*args, **keywords)
    if is_outer:
        then()
        log.begin("optimizer")
    return result
