"""Reads the loss of the current step, which a trainer does not pass to its callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forgather_mem.callbacks.trainer.link import Link
from forgather_mem.callbacks.trainer.method_patches import Arguments, Call, Keywords
from forgather_mem.telemetry.guard import FailureGuard


class StepLoss:
    """Reads the loss of each step between `start()` and `stop()`.

    It is what the trainer logs as "loss", for one step and this process alone: the sum over the step's micro-batches.
    Each is read immediately, so that no tensor is kept; for that the host waits for the device.

    Args:
        link: The trainer's link.
        fence: The run's fence: a loss that is not a number must not end the training.
    """

    def __init__(self, link: Link, fence: FailureGuard) -> None:
        self._link = link
        self._fence = fence
        self._sum: float | None = None
        self._unwrap: Callable[[], None] | None = None

    def start(self) -> None:
        """Start reading losses."""
        if self._unwrap is None:
            self._unwrap = self._link.around_training_step(self._training_step)

    def stop(self) -> None:
        """Stop reading losses."""
        unwrap, self._unwrap, self._sum = self._unwrap, None, None
        if unwrap is not None:
            unwrap()

    def take(self) -> float | None:
        """The loss of the finished step; None if it was not read."""
        total, self._sum = self._sum, None
        return total

    def _training_step(self, call: Call, arguments: Arguments, keywords: Keywords) -> object:
        share = call(*arguments, **keywords)
        if self._unwrap is not None:  # else other code has wrapped our wrapper, and it is still in place
            self._fence.call("the loss of a step", self._add, share)
        return share

    def _add(self, share: Any) -> None:
        self._sum = (self._sum or 0.0) + float(share)
