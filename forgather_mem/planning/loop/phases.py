"""The loop of a Trainer that is planned, in place of its callbacks.

Its callbacks are called, since they may keep tensors, such as averaged weights. One that fails, because it
needs a value or would start a program, is left out, and said. All of it is set for good: it is called in a process that
plans and then ends.
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import cast

from forgather_mem.planning.batches import Trainer, Wanted
from forgather_mem.planning.loop.loaders import Loaders
from forgather_mem.planning.loop.notes import Note
from forgather_mem.planning.loop.rounds import MOST_BATCHES
from forgather_mem.planning.loop.script import Loop
from forgather_mem.planning.refusal import problem_of
from forgather_mem.planning.stand_ins import StandIns
from forgather_mem.source.source_lines import is_our_class, is_user_module


class TrainerLoop(Loop):
    """In place of the trainer's callbacks.

    Args:
        wanted: What is planned.
        answers: Asked for values.
        trainer: Whose callbacks are planned, and whose model is trained.
    """

    def __init__(self, wanted: Wanted, answers: StandIns, trainer: Trainer) -> None:
        super().__init__(wanted, answers)
        self._meet([trainer.model])
        self._trainer, self.tells_ends = trainer, True
        self.each = int(trainer.args.gradient_accumulation_steps)
        self._loaders = Loaders(self)
        callbacks = trainer.callback_handler.callbacks
        self._callbacks = [one for one in callbacks if not is_our_class(type(one))]  # they keep no tensors
        of_loop = trainer, trainer.data_collator, getattr(trainer, "compute_loss_func", None), *self._callbacks
        self.looks_ahead = any(is_user_module(sys.modules.get(getattr(one, "__module__", ""))) for one in of_loop)
        self._is_between = self._had_last_of_epoch = self._is_last = False
        # An evaluation follows the last step of an epoch, which has no batch loaded ahead
        self._by_epoch = trainer.args.eval_strategy == "epoch"
        self._epoch = self._began = self._steps = self._kept_bytes = 0
        trainer.callback_handler.callbacks = [self]

    @property
    def trains(self) -> bool:
        """Whether it is no evaluation."""
        return not self._is_between

    def is_first(self, number: int) -> bool:
        """Whether this batch belongs to the first step; one is loaded ahead."""
        return number < self.each and self.rounds.step == 1

    def is_through(self) -> bool:
        """Whether it is enough."""
        return not self._is_between and super().is_through()

    def counts_idle(self) -> None:
        """Nothing: the trainer knows how many epochs there are."""

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
        self._fire("on_epoch_begin", *given, **keywords)

    def on_step_end(self, *given: object, **keywords: object) -> None:
        self.log.begin("data", self.step)  # the gradients are gone by now
        self._fire("on_step_end", *given, **keywords)
        control, is_over = self._trainer.control, self._is_over()
        self._steps += 1
        if (is_over or self._steps > 1) and not self._by_epoch:
            self._come_between(*given, **keywords)
        is_last = not self._trainer.state.epoch % 1
        if not is_over and self.is_through() and is_last and not self._had_last_of_epoch:
            self._had_last_of_epoch = True  # which had no batch loaded ahead
            self.again()
        is_enough = self._is_enough and not self._loaders.waiting
        control.should_epoch_stop = ends = is_enough and (self._is_last or is_last or not self._by_epoch)
        self._loaders.left, self._is_last = 0 if ends else self.each - 1, is_enough
        control.should_training_stop = is_over
        self.log.begin("data", self.step)

    def _is_over(self) -> bool:
        """Whether the training ends with this step, counted as if the epochs before it were whole."""
        state = self._trainer.state
        part, steps = state.epoch - self._epoch, state.global_step - self._began
        return bool(part > 0 and round(steps / part * state.epoch) >= state.max_steps)

    def on_epoch_end(self, *given: object, **keywords: object) -> None:
        self._fire("on_epoch_end", *given, **keywords)
        is_over, self._is_last, before_bytes = self._is_over(), False, self.log.alive_bytes
        if self._by_epoch:
            self._come_between(*given, **keywords)
            if 1000 * (self.log.alive_bytes - before_bytes) > before_bytes:
                self.again()
        self._trainer.control.should_training_stop = False  # as of an epoch without batches
        self._epoch += 1
        if is_over or self._epoch >= min(MOST_BATCHES, self._trainer.state.num_train_epochs):
            self.end()

    def _come_between(self, *given: object, **keywords: object) -> None:
        """A log, an evaluation and a checkpoint: once, and again where more is kept than when they began."""
        kept_bytes, trainer, state = self.log.alive_bytes, self._trainer, self._trainer.state
        by_steps = trainer.args.eval_strategy == "steps"
        comes_once = (state.max_steps / state.eval_steps if by_steps else state.num_train_epochs) <= 1
        has_grown = 1000 * (kept_bytes - self._kept_bytes) > kept_bytes
        if self.ahead.skips or not has_grown or (self._kept_bytes and comes_once):
            return
        self._is_between = True
        if trainer.args.logging_strategy != "no":
            self._fire("on_log", *given, **keywords)
        if trainer.eval_dataset is not None or trainer.args.eval_strategy != "no":
            self.log.begin("evaluate")
            try:
                trainer.evaluate()
            except Exception as error:  # noqa: BLE001  # the evaluation's own: the training is planned all the same
                self.notes.append(Note(f"The evaluation is not planned: {problem_of(error)}", "at least"))
        if trainer.args.save_strategy != "no":
            self._fire("on_save", *given, **keywords)
        self._is_between = False
        self._kept_bytes = kept_bytes

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return partial(self._fire, name)

    def _fire(self, event: str, arguments: object, *of_training: object, **keywords: object) -> None:
        """The state of the training, and what is to be done next, are copies."""
        numbers = {"on_log": "logs", "on_evaluate": "metrics"}.get(event)
        if numbers is not None:  # whatever is asked for is one
            known = cast(dict[str, float], keywords.get(numbers, {}))
            keywords[numbers] = defaultdict(lambda: 1.0, {"loss": 1.0, "eval_loss": 1.0, **known})
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
