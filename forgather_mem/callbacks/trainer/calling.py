"""Which trainer is calling us, by the frames up the stack: where none does, nothing else of the link is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from forgather_mem.source.frame_variables import frame_variables, is_function
from forgather_mem.source.source_lines import with_callers

# The whole training, in transformers' and in Forgather's trainer.
WHOLE = ("_inner_training_loop", "_train_loop")
_BUILDS_OR_TRAINS = ("__init__", "train", *WHOLE)


def fellow_callbacks() -> list[Any]:
    """All callbacks of transformers' handler that is calling us; empty if something else is calling."""
    handler = caller(("call_event",), lambda owner: hasattr(owner, "callbacks"))
    return list(handler.callbacks) if handler is not None else []


def calling_trainer() -> Any | None:
    """The trainer whose constructor or training is calling us."""
    trainer = caller(_BUILDS_OR_TRAINS, lambda owner: hasattr(owner, "train") and hasattr(owner, "add_callback"))
    return None if getattr(trainer, "links_itself", False) else trainer


def caller(names: Iterable[str], fits: Callable[[Any], bool]) -> Any | None:
    """The nearest object up the stack that is calling us through a method with one of these names."""
    for frame in with_callers(sys._getframe(1)):
        if frame.f_code.co_name in names and is_function(frame):
            owner = frame_variables(frame).get("self")
            if owner is not None and fits(owner):
                return owner
    return None
