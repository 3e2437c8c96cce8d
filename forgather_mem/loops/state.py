"""What callbacks need in a loop without a Trainer: arguments, state, and a control flow that decides nothing."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from transformers.trainer_callback import DefaultFlowCallback, TrainerState

from forgather_mem.telemetry.run_session import rank_and_size


class NoFlow(DefaultFlowCallback):
    """The loop's own code decides when to log, evaluate and save; transformers warns if no flow callback does."""

    def wants(self, event: str, steps_done: int | None) -> bool:
        """Whether this event is handled."""
        return False

    def on_step_end(self, args: object, state: object, control: object, **kwargs: object) -> None: ...

    def on_epoch_end(self, args: object, state: object, control: object, **kwargs: object) -> None: ...


def new_state(args: object) -> TrainerState:
    """A state with what any callback checks before it prints: whether this is the main process."""
    rank = getattr(args, "process_index", rank_and_size()[0])
    local_rank = getattr(args, "local_process_index", os.environ.get("LOCAL_RANK", rank))
    return TrainerState(is_world_process_zero=not int(rank or 0), is_local_process_zero=not int(local_rank or 0))


def default_arguments() -> Any:
    """Arguments for a loop without any: no folder, and the ranks set by a launcher."""
    rank, world_size = rank_and_size()
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    return SimpleNamespace(output_dir=None, process_index=rank, world_size=world_size, local_rank=local_rank)
