"""The callbacks of a loop without a Trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import TrainerCallback


class CallbackList:
    """Calls callbacks as transformers' `CallbackHandler` does, which is not imported for a loop.

    Args:
        callbacks: Instances or classes, as for a `Trainer`.
        model, optimizer: Passed to each of them.
    """

    def __init__(
        self, callbacks: Iterable[TrainerCallback | type[TrainerCallback]], model: Any, optimizer: Any
    ) -> None:
        self.callbacks: list[TrainerCallback] = []
        for callback in callbacks:
            self.add_callback(callback)
        self.model = model
        self.optimizer = optimizer

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Add a callback, or a new one of a class."""
        self.callbacks.append(callback() if isinstance(callback, type) else callback)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        """Remove a callback, or the first of a class, and return it; None if there is none."""
        for known in self.callbacks:
            if isinstance(known, callback) if isinstance(callback, type) else known == callback:
                self.callbacks.remove(known)
                return known
        return None

    def call_event(self, event: str, args: Any, state: Any, control: Any, **objects: Any) -> Any:
        """Call this method of each; returns the control that the last of them has returned, if any has."""
        for callback in self.callbacks:
            returned = getattr(callback, event)(
                args, state, control, model=self.model, processing_class=None, optimizer=self.optimizer,
                lr_scheduler=None, train_dataloader=None, eval_dataloader=None, **objects,
            )  # fmt: skip
            control = control if returned is None else returned
        return control
