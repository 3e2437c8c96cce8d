"""What callbacks need in a loop without a Trainer: arguments, state and control.

They are those of transformers where the script has imported it, and ours with the same names where it has not: for a
loop nothing is imported.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from forgather_mem.telemetry.run_session import rank_and_size

if TYPE_CHECKING:
    from transformers import TrainerState


@dataclass
class LoopState:
    """The names and defaults of `TrainerState`, as far as a loop without a Trainer has something to say of them."""

    epoch: float = 0
    global_step: int = 0
    max_steps: int = 0
    log_history: list[dict[str, float]] = field(default_factory=list)
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True


@dataclass
class LoopControl:
    """The names and defaults of `TrainerControl`."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False


def of_transformers(name: str, module: str = "trainer_callback") -> Any:
    """What a module of transformers calls so, if the script has imported that module; else None."""
    return getattr(sys.modules.get(f"transformers.{module}"), name, None)


def new_state(args: object) -> TrainerState:
    """A state with what any callback checks before it prints: whether this is the main process."""
    rank = getattr(args, "process_index", rank_and_size()[0])
    local_rank = getattr(args, "local_process_index", os.environ.get("LOCAL_RANK", rank))
    kind: type[Any] = of_transformers("TrainerState") or LoopState
    state: TrainerState = kind(is_world_process_zero=not int(rank or 0), is_local_process_zero=not int(local_rank or 0))
    return state


def default_arguments(output_dir: str | None = None) -> SimpleNamespace:
    """Arguments for a loop without any: this folder, or none, and the ranks set by a launcher."""
    rank, world_size = rank_and_size()
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    return SimpleNamespace(output_dir=output_dir, process_index=rank, world_size=world_size, local_rank=local_rank)
