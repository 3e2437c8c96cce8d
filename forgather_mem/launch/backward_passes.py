"""Tells the steps of a loop that changes its parameters by hand: one for each backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

from forgather_mem.system.call_wrapping import without_frames
from forgather_mem.telemetry.guard import FailureGuard

_FEWEST = 16  # gradients may be accumulated before an optimizer that is made late takes its first step


class BackwardPasses:
    """Hears of each call of `torch.autograd.backward`, which `Tensor.backward` calls, as long as no optimizer is used.

    Args:
        autograd: The module `torch.autograd`.
        stepped: Called with a number of steps that are over: after 16 passes if no optimizer of torch is alive by
            then, and after each that follows.
    """

    def __init__(self, autograd: ModuleType, stepped: Callable[[int], object]) -> None:
        self._autograd, self._stepped = autograd, stepped
        self._fence = FailureGuard()
        self._num_passes = 0
        self._is_over = False
        self._call = call = autograd.backward

        @functools.wraps(call)
        def backward(*arguments: object, **keywords: object) -> None:
            try:
                call(*arguments, **keywords)
            except BaseException as error:
                error.__traceback__ = without_frames(error.__traceback__, __file__)
                raise
            if not self._is_over:
                self._fence.call("backward passes", self._passed)

        self._ours = autograd.backward = backward  # type: ignore[attr-defined]

    def end(self) -> None:
        """An optimizer steps: nothing is told from now on."""
        self._is_over = True
        if self._autograd.backward is self._ours:
            self._autograd.backward = self._call  # type: ignore[attr-defined]

    def _passed(self) -> None:
        from forgather_mem.system.tracing import is_traced

        if is_traced():
            return
        self._num_passes += 1
        if self._num_passes < _FEWEST:
            return
        if self._num_passes == _FEWEST and _has_optimizer():
            self.end()
            return
        self._stepped(1 if self._num_passes > _FEWEST else _FEWEST)


def _has_optimizer() -> bool:
    import torch

    from forgather_mem.probes.live_objects import live_objects

    return bool(live_objects((torch.optim.Optimizer,)))
