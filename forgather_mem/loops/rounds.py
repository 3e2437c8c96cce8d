"""When a step is over in a loop with one optimizer or several."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

# Calls without one of the optimizers after which it counts as unused, at least.
PATIENCE = 10


class OptimizerRounds:
    """The optimizers of a training, and which of them have stepped since the last step ended.

    With one optimizer each of its steps is a step. With several, as in a GAN, or with one for each parameter, a step
    is a round in which each has stepped at least once. One that does not step for `PATIENCE` calls of the others, or
    for four times the longest wait so far, is not waited for any more; the calls then count as the steps they were.

    Args:
        optimizers: Those that are alive when the training begins; not all of them need to be part of it.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._missing = weakref.WeakSet(optimizers)  # in this round
        self._used: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._num_calls = 0  # in this round
        self._num_before = 0  # before it
        self._longest = 0  # calls between two steps of one optimizer

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that step and are alive."""
        return list(self._used)

    @property
    def in_round(self) -> bool:
        """Whether a round has begun that is not over."""
        return self._num_calls > 0

    def ends_with(self, optimizer: torch.optim.Optimizer) -> int:
        """This one has stepped: the number of training steps that are over with it; 0 inside a round."""
        self._num_calls += 1
        self._missing.discard(optimizer)
        if optimizer not in self._used:
            self._used.add(optimizer)
            self._longest = max(self._longest, self._num_before + self._num_calls)
        if not len(self._missing):
            self._longest = max(self._longest, self._num_calls)
            return self._ended(1)
        if self._num_calls < max(PATIENCE, 4 * self._longest):
            return 0
        self._used -= self._missing
        return self._ended(self._num_calls // len(self._used))

    def _ended(self, num_steps: int) -> int:
        self._num_before += self._num_calls
        self._num_calls = 0
        if len(self._used) > 1 or len(self._missing):
            self._missing = weakref.WeakSet(self._used)
        return num_steps
