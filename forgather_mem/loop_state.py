"""What do callbacks find in a loop that has no Trainer: arguments, state, and nobody who decides for it?"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from transformers.trainer_callback import DefaultFlowCallback, TrainerState


class NoFlow(DefaultFlowCallback):
    """A loop's own code decides when to log, evaluate and save; transformers warns when nobody does."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...


def new_state(args: Any) -> TrainerState:
    """With what a callback of anybody's asks before it prints: am I the first process?"""
    rank = getattr(args, "process_index", os.environ.get("RANK"))
    local_rank = getattr(args, "local_process_index", os.environ.get("LOCAL_RANK", rank))
    return TrainerState(is_world_process_zero=not int(rank or 0), is_local_process_zero=not int(local_rank or 0))


def default_arguments() -> Any:
    """What callbacks may ask of a loop without arguments: no folder, and the ranks that a launcher has set."""
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    return SimpleNamespace(output_dir=None, process_index=rank, world_size=world_size, local_rank=local_rank)
