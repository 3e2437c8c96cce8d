"""The steps of a Trainer that is planned, in place of its callbacks.

Its callbacks are called, since they may keep tensors, such as averaged weights. One that fails, because it
needs a value or would start a program, is left out, and said. All of it is set for good: it is called in a process that
plans and then ends.
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch

from forgather_mem.planning.batches import PlannedShape, Trainer
from forgather_mem.planning.known_operations import tensors_among
from forgather_mem.planning.loop.ahead import Ahead
from forgather_mem.planning.loop.loaders import Loaders
from forgather_mem.planning.loop.rounds import MOST_BATCHES, Rounds
from forgather_mem.planning.loop.stage import Stage
from forgather_mem.planning.refusal import problem_of
from forgather_mem.source.source_lines import is_our_class, is_user_module

_NUMBERS = {"on_log": "logs", "on_evaluate": "metrics"}


class EnoughSteps(BaseException):
    """Ends the loop: no handler of exceptions in it is meant."""


class Steps:
    """In place of the trainer's callbacks; its data loaders ask it, too.

    Args:
        stage: Its log is told of the steps, its notes of callbacks that are left out from where they failed.
        trainer: Whose callbacks are planned, and whose model is trained.
        at_end: Called after the last step of the first epoch that is planned.

    Attributes:
        log, notes: The stage's.
        wanted: The shape of batches.
        rounds: Asked whether another step is needed.
        again: Asks for another round.
        shapes: Of the batches.
        each: How many a step has.
        ahead: What comes later, where code of the user's is in the loop.
        trains: Whether batches are no evaluation's.
        num_passes, skipped, all_rows: Loaders end the loop where it is enough, and nothing is left out.
    """

    num_passes, skipped, all_rows = 1, 0, 0

    def __init__(self, stage: Stage, trainer: Trainer, at_end: Callable[..., None]) -> None:
        self.log, self.notes, self.wanted, self._trainer = stage.log, stage.notes, stage.wanted.shape, trainer
        self.rounds, self.shapes, self.trains = Rounds(stage.log), list[PlannedShape](), True
        self.each, self._at_end = int(trainer.args.gradient_accumulation_steps), at_end
        self.ahead = Ahead(stage, [trainer.model], self)
        self._loaders = Loaders(self)
        callbacks = trainer.callback_handler.callbacks
        self._callbacks = [one for one in callbacks if not is_our_class(type(one))]  # they keep no tensors
        of_loop = trainer, trainer.data_collator, getattr(trainer, "compute_loss_func", None), *self._callbacks
        self._is_users = any(is_user_module(sys.modules.get(getattr(one, "__module__", ""))) for one in of_loop)
        self._was_last_of_epoch = self._has_ended = self._is_enough = False
        self._epoch = self._began = 0

    def called(self, _: object, args: Sequence[object], keywords: Mapping[str, object]) -> None:
        """A module begins "forward", but for an evaluation's."""
        if self.log.phase not in ("backward", "evaluate"):  # a whole model may be checkpointed
            self.log.begin("forward")
        for tensor in tensors_among((args, keywords)):
            if not tensor.requires_grad:
                self.log.saw(tensor, "batch")

    def passes(self) -> None:
        """Nothing."""

    passed = passes

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has."""
        self.rounds.stepped(optimizer)

    def is_first(self, number: int) -> bool:
        """Whether this batch belongs to the first step; one is loaded ahead."""
        return number < self.each and self.rounds.step == 1

    def rounds_of_evaluation(self) -> None:
        """None: it has as many batches as it is given."""

    def counts_idle(self) -> None:
        """Nothing: the trainer knows how many epochs there are."""

    def is_through(self) -> bool:
        """Whether it is enough."""
        return self._is_enough

    def again(self) -> None:
        """Another round is to come."""
        self.rounds.again()
        self._is_enough = self._trainer.control.should_epoch_stop = False

    def most_batches(self, of_epoch: int) -> int:
        """That come in this epoch, of so many; its last step may be short."""
        steps: int = self._trainer.state.max_steps - self._epoch * -(-of_epoch // self.each)
        return max(0, steps) * self.each

    def on_train_begin(self, *given: object, **keywords: object) -> None:
        model = self._trainer.model
        for tensor in (*model.parameters(), *model.buffers()):  # as shards, where they are sharded
            self.log.saw(tensor, "parameters")
        self.log.begin("data")
        self._fire("on_train_begin", *given, **keywords)

    def on_epoch_begin(self, *given: object, **keywords: object) -> None:
        state = self._trainer.state
        state.epoch, self._began = self._epoch, state.global_step  # those before it have ended early
        self._trainer.control.should_epoch_stop = self._is_enough
        self._fire("on_epoch_begin", *given, **keywords)

    def on_step_end(self, *given: object, **keywords: object) -> None:
        self._fire("on_step_end", *given, **keywords)
        is_over = self._is_over()
        is_last = not (self.rounds.go_on() or self._loaders.are_awaited()) or (is_over and self.rounds.step > 1)
        if is_over:
            self.ahead.tell(has_all=True)
        elif self._is_users:
            is_last = self.ahead.is_through(is_last)
        if is_last and (self._trainer.state.epoch % 1 or self._was_last_of_epoch):
            # What the evaluation has left is there in the step after it; the last one may come before the end
            has_next = self._end(*given, **keywords) and (self._trainer.args.do_eval or not is_over)
            self._is_enough = not (has_next and self.rounds.go_on())
            self._trainer.control.should_epoch_stop = self._is_enough
        # The last step of an epoch has fewer batches, and none loaded ahead: the next one belongs to it, too
        self._was_last_of_epoch = is_last
        self.log.begin("data", 0 if self.ahead.skips else self.rounds.step)

    def _is_over(self) -> bool:
        """Whether the training ends with this step, counted as if the epochs before it were whole."""
        state = self._trainer.state
        part, steps = state.epoch - self._epoch, state.global_step - self._began
        return bool(part > 0 and round(steps / part * state.epoch) >= state.max_steps)

    def on_epoch_end(self, *given: object, **keywords: object) -> None:
        self._fire("on_epoch_end", *given, **keywords)
        self._trainer.control.should_training_stop = False  # as of an epoch without batches
        self._epoch += 1
        has_all = self._is_enough and self.ahead.has_all and not self._loaders.differ
        if has_all or self._is_over() or self._epoch >= min(MOST_BATCHES, self._trainer.state.num_train_epochs):
            self.ahead.tell(has_all=True)
            self._end(*given, **keywords)
            raise EnoughSteps

    def _end(self, *given: object, **keywords: object) -> bool:
        """What follows the steps, once: whether it was this time."""
        if self._has_ended:
            return False
        self._has_ended, self.trains = True, False
        self._at_end(*given, **keywords)
        self.trains = True
        return True

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
