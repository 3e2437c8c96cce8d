"""When a step is over in a loop with one optimizer or several."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from forgather_mem.loops.turns import Place, take_turns
from forgather_mem.telemetry.beside import Beside, marked

# Calls without one of the optimizers after which it counts as unused, at least.
PATIENCE = 10


class OptimizerRounds:
    """The optimizers of a training, and which of them have stepped since the last step ended.

    With one optimizer each of its steps is a step. With several, as in a GAN, or with one for each parameter, a step
    is a round in which each has stepped at least once. One that does not step for `PATIENCE` calls of the others, or
    for four times the longest wait so far, is not waited for any more; the calls then count as the steps they were.
    One that is made while the training runs, as for a probe that is trained in between, counts only from its call
    number `PATIENCE` on; but where another has stepped, or where no loop goes through both places, it follows that one
    at once, as in a training that makes its optimizer anew for each fold.

    Args:
        optimizers: Those that are alive when the training begins; not all of them need to be part of it.

    Attributes:
        in_round: Whether a round has begun that is not over.
        places: Where each was called last, as far as that was told.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._first = marked(optimizers)
        self._missing = marked(self._first)  # in this round
        self._calls = Beside[int]()  # in it
        self._used, self._new = marked(), Beside[int]()
        self.places = Beside[Place]()
        self.in_round = False
        self._num_calls = 0  # in this round
        self._num_before = 0  # before it
        self._own, self._num_before_own = marked(), 0  # those of the steps before this round, and when they began
        self._longest = 0  # calls between two steps of one optimizer

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that step and are alive."""
        return list(self._used)

    def may_be_over(self, following: torch.optim.Optimizer, least: int) -> bool:
        """Whether this one is another than those of the steps so far, of which there are at least so many."""
        num_steps = (self._num_before - self._num_before_own) // max(1, len(self._own))
        return num_steps >= least and following not in self._own

    def take_turns_with(self, place: Place) -> bool:
        """Whether a loop goes through this place, and through one where they step."""
        return any(take_turns(was, place) for was in map(self.places.get, self._used) if was is not None)

    def begins(self, optimizer: torch.optim.Optimizer, place: Place) -> None:
        """This one steps there; those that a new one follows are not waited for any more."""
        is_new = optimizer not in self.places and optimizer not in self._first
        self.places[optimizer] = place
        for one in self._used if is_new else ():
            was = self.places.get(one)
            if was is not None and (was == place or not take_turns(was, place)):
                self._used.discard(one)
                self._missing.discard(one)
                self._used[optimizer] = True

    def ends_with(self, optimizer: torch.optim.Optimizer) -> int:
        """This one has stepped: the number of training steps that are over with it; 0 inside a round."""
        if not self.in_round and len(self._own) == 1 and optimizer in self._own:
            self._num_before += 1
            return 1
        self.in_round = True
        self._num_calls += 1
        self._missing.discard(optimizer)
        self._calls[optimizer] = (self._calls.get(optimizer) or 0) + 1
        if optimizer not in self._used:
            self._use(optimizer)
        if optimizer in self._used and not len(self._missing):
            self._longest = max(self._longest, self._num_calls)
            return self._ended()
        if self._num_calls < max(PATIENCE, 4 * self._longest):
            return 0
        for unused in self._missing:
            self._used.discard(unused)
        for used in self._calls:
            self._used[used] = True
        return self._ended()

    def end(self) -> int:
        """The training is over: the number of steps that were withheld for optimizers that have never stepped."""
        is_missed = any(one in self._used for one in self._missing)
        return self._ended() if self._num_calls and self._used and not is_missed else 0

    def _use(self, optimizer: torch.optim.Optimizer) -> None:
        self._new[optimizer] = num_new = (self._new.get(optimizer) or 0) + 1
        if optimizer in self._first:  # one that was made since has not let anybody wait
            self._longest = max(self._longest, self._num_before + self._num_calls)
        elif self._used and num_new < PATIENCE:
            return
        self._used[optimizer] = True

    def _ended(self) -> int:
        # More than one where one was waited for that is dropped now, or dead
        num_steps = min(self._calls.get(optimizer) or 0 for optimizer in self._used)
        self._num_before += self._num_calls
        self._num_calls, self.in_round = 0, False
        self._missing = marked(self._used)
        self._calls.clear()
        if {*map(id, self._own)} != {*map(id, self._used)}:
            self._own, self._num_before_own = marked(self._used), self._num_before
        return num_steps
