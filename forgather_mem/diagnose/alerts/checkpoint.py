"""What the checkpoints of a training take on the disk, and whether that has room for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forgather_mem.diagnose.alerts.foretold import Foretold, free_disk_bytes
from forgather_mem.errors import ours
from forgather_mem.telemetry.records import Moment
from forgather_mem.units import format_bytes

if TYPE_CHECKING:
    import torch

_CHECKPOINT = re.compile(r"checkpoint-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePlan:
    """When a training saves.

    Attributes:
        num_checkpoints: How many it writes in all.
        most_at_once: How many of these are on the disk at once: a new one is written before an old one is removed.
        every_steps: Steps between them; None where they come with the epochs.
        keeps: `save_total_limit`.
        only_model: Whether the optimizer's state is left out.
        folder: Where to.
        options: Of the loop: to keep fewer, to leave the optimizer's state out, to name the place.
    """

    num_checkpoints: int
    most_at_once: int
    every_steps: int | None
    keeps: int | None
    only_model: bool = False
    folder: str = "."
    options: tuple[str, str, str] = ("save_total_limit={}", "save_only_model=True", "output_dir")

    def when(self, number: int, max_steps: int) -> tuple[int | None, str]:
        """The step of this checkpoint, counted from 1, if that is known; and for people."""
        if self.every_steps is None:
            return None, f"after epoch {number:,}"
        step = min(number * self.every_steps, max_steps) if max_steps > 0 else number * self.every_steps
        return step, f"step {step:,}"


def checkpoint_ahead(moment: Moment, *, stay: bool = True) -> Foretold | None:
    """The first checkpoint that will not fit; None if all do, or if it is not known what they take.

    Args:
        moment: A step's end.
        stay: Whether they stay where they are written; else each needs only its own room.
    """
    plan = save_plan(moment)
    sizes = checkpoint_bytes(moment, plan) if plan is not None else None
    free_bytes = free_disk_bytes(plan.folder) if plan is not None else None
    if plan is None or sizes is None or free_bytes is None or not sum(sizes):
        return None
    plan = plan if stay else replace(plan, most_at_once=1)
    # Records, configurations and whole blocks come on top: on a disk of 60 MiB the second of 29.9 MiB failed
    each_bytes = sum(sizes) * 51 // 50
    if plan.most_at_once * each_bytes <= free_bytes:
        return None
    number = free_bytes // each_bytes + 1
    at_step, when = plan.when(number, moment.state.max_steps)
    which = "the first checkpoint" if number == 1 else f"checkpoint {number:,} of {plan.num_checkpoints:,}"
    text = (
        f"{which} ({when}) will not fit on the disk of {plan.folder}: each takes {format_bytes(sum(sizes))}, "
        f"{format_bytes(free_bytes)} are free. {_advice(plan, *sizes, free_bytes)}"
    )
    needed = number * sum(sizes)
    return Foretold(name="checkpoint", text=text, needed_bytes=needed, left_bytes=free_bytes, at_step=at_step)


def save_plan(moment: Moment) -> SavePlan | None:
    """When it saves; None if never, or if the loop does not say."""
    args, state = moment.args, moment.state
    known: SavePlan | None = getattr(args, "_save_plan", None)
    if known is not None:  # of Lightning
        return known
    strategy = getattr(args, "save_strategy", None)
    strategy = getattr(strategy, "value", strategy)
    max_steps: int = getattr(state, "max_steps", 0)
    every: int | None = None
    if strategy == "steps":
        asked = float(getattr(state, "save_steps", 0) or getattr(args, "save_steps", 0))
        every = int(asked if asked >= 1 else asked * max_steps)
        if every < 1 or max_steps < 1:
            return None
        count = -(-max_steps // every)  # the last step is saved, too
    elif strategy == "epoch":
        count = int(getattr(state, "num_train_epochs", 0))
    else:
        return None
    keeps = getattr(args, "save_total_limit", None)
    keeps = keeps if isinstance(keeps, int) and keeps > 0 else None
    there = _num_there(args.output_dir)
    most = count if keeps is None else min(count, keeps + 1 + bool(getattr(args, "load_best_model_at_end", False)))
    plan = SavePlan(num_checkpoints=count, most_at_once=max(1, most - there), every_steps=every, keeps=keeps)
    return replace(plan, only_model=bool(getattr(args, "save_only_model", False)), folder=args.output_dir)


def checkpoint_bytes(moment: Moment, plan: SavePlan) -> tuple[int, int] | None:
    """What one checkpoint takes of all ranks: its weights, and what else is saved of the training.

    None where it is not known, as with DeepSpeed, which saves in a way of its own.
    """
    model = moment.objects.get("model")
    if model is None or not hasattr(model, "state_dict") or getattr(moment.args, "deepspeed", None):
        return None
    if hasattr(model, "peft_config"):  # adapters alone are saved
        weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    else:
        weights = [value for value in model.state_dict().values() if hasattr(value, "untyped_storage")]
    saved = [] if plan.only_model else _states(moment.objects.get("optimizer"))
    ranks = moment.run.world_size if _is_flat(model) else 1
    return ranks * _whole_bytes(weights), ranks * _whole_bytes(saved)


def _advice(plan: SavePlan, model_bytes: int, optimizer_bytes: int, free_bytes: int) -> str:
    """What would fit, the smallest change first."""
    keeps = free_bytes // (model_bytes + optimizer_bytes) - 1
    if keeps >= 1 and (plan.keeps is None or keeps < plan.keeps):
        return f"With {plan.options[0].format(keeps)} they fit"
    if optimizer_bytes and plan.most_at_once * model_bytes <= free_bytes:
        return f"With {plan.options[1]} they fit ({format_bytes(model_bytes)} each; no resuming)"
    return f"Free some space, or set another {plan.options[2]}"


def _num_there(folder: str) -> int:
    """Checkpoints of earlier runs, which a limit counts and which are written over."""
    try:
        return sum(1 for entry in os.scandir(folder) if _CHECKPOINT.fullmatch(entry.name))
    except ours(OSError):
        return 0


def _states(optimizer: object) -> list[torch.Tensor]:
    """The tensors that an optimizer keeps."""
    state = getattr(optimizer, "state", None)
    entries = [entry for entry in state.values() if isinstance(entry, Mapping)] if isinstance(state, Mapping) else []
    return [value for entry in entries for value in entry.values() if hasattr(value, "untyped_storage")]


def _whole_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of these tensors, those that are tied once; of a tensor that is sharded (DTensor) all of it."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        sizes[local.data_ptr()] = tensor.numel() * tensor.element_size()
    return sum(sizes.values())


def _is_flat(model: torch.nn.Module) -> bool:
    """Whether this rank has its part of a flat parameter (FSDP 1)."""
    return any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
