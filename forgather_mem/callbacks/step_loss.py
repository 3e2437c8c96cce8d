"""What is the loss of the step that is being made? A trainer does not tell its callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forgather_mem.callbacks.link import Link
from forgather_mem.fence import Fence


class StepLoss:
    """Reads the loss of each step between `start()` and `stop()`.

    It is what the trainer logs as "loss", of one step and this process alone: the sum over the step's
    micro-batches. Each is read as soon as it is there, for which the host waits for the device, so that no
    tensor is kept.

    Args:
        link: Of the trainer.
        fence: Of the run: a loss that is no number ends no training.
    """

    def __init__(self, link: Link, fence: Fence) -> None:
        self._link = link
        self._fence = fence
        self._sum: float | None = None
        self._unwrap: Callable[[], None] | None = None

    def start(self) -> None:
        """Read the losses from here on."""
        if self._unwrap is None:
            self._unwrap = self._link.around_training_step(self._training_step)

    def stop(self) -> None:
        """Read no more losses."""
        unwrap, self._unwrap, self._sum = self._unwrap, None, None
        if unwrap is not None:
            unwrap()

    def take(self) -> float | None:
        """The loss of the step that has ended; None when it was not read."""
        total, self._sum = self._sum, None
        return total

    def _training_step(self, call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        share = call(*arguments, **keywords)
        if self._unwrap is not None:  # else somebody has wrapped our wrapper, so that it is still there
            self._fence.call("the loss of a step", self._add, share)
        return share

    def _add(self, share: Any) -> None:
        self._sum = (self._sum or 0.0) + float(share)
