"""The report's account of a failure, in a watched training or in a script without one.

Nothing here imports torch or a sink: it runs at the end of every process of a watched command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import RunSettings, StepUse, settings_of
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.memory_in_use import memory_then
from forgather_mem.diagnose.oom.place import (
    batch_on_the_way,
    failure_at,
    is_before_any_training,
    rows_outside_a_step,
    trained_by,
)
from forgather_mem.diagnose.oom.recognition import OutOfMemory
from forgather_mem.diagnose.oom.shapes.batch_shapes import Batch
from forgather_mem.diagnose.oom.shapes.layers import part_done
from forgather_mem.diagnose.oom.story import oom_of
from forgather_mem.telemetry.report import NOT_JUDGED, Change, LeakReport, OomReport

# Functions of transformers' Trainer, around all that it does.
_TRAINERS = frozenset({"_inner_training_loop", "evaluation_loop", "_load_from_checkpoint", "_save_checkpoint"})
# Of a Trainer's arguments, for a loop of the script's own.
_IN_WORDS = {
    "per_device_train_batch_size": "batch size {}",
    "per_device_eval_batch_size": "batch size {} in the evaluation",
    "gradient_accumulation_steps": "gradients of {} batches in each step",
    "gradient_checkpointing": "activation checkpointing (torch.utils.checkpoint)",
    "dataloader_num_workers": "DataLoader(num_workers={})",
    "dataloader_prefetch_factor": "DataLoader(prefetch_factor={})",
    "dataloader_pin_memory": "pin_memory={}",
    "torch_compile_mode": 'torch.compile(mode="{}")',
    "optim": "the optimizer {}",
}


def failure_outside(error: BaseException, found: OutOfMemory, rank: int = 0, reserve_bytes: int = 0) -> Failure:
    """What is known of an error outside any training, beyond its message."""
    model, optimizer = trained_by(error)
    failure = failure_at(error, found, model, optimizer)
    failure.rank = rank
    is_trainers = not _TRAINERS.isdisjoint(failure.functions)
    failure.settings = replace(settings_of(None, model, None, optimizer), is_trainers=is_trainers)
    has_trained = bool(getattr(optimizer, "state", None)) or not is_before_any_training(error)
    operation = failure.operation
    is_loss = operation is not None and operation.of_graph
    failure.phase = failure.phase or ("forward" if is_loss else "other" if has_trained else "startup")
    failure.batch = rows_outside_a_step(error, failure.phase) or batch_on_the_way(error)
    if failure.batch is None and is_loss and operation is not None and operation.operands:
        failure.batch = Batch(operation.operands[0][1][0], None)  # a loss outside of modules: the rows of its tensors
    failure.part_done = part_done(model, failure.layer)
    failure.memory = memory_then(found, failure.phase, model, optimizer, failure.census, reserve_bytes=reserve_bytes)
    return failure


def explained(
    failure: Failure,
    leak: LeakReport = NOT_JUDGED,
    settings: RunSettings | None = None,
    uses: Sequence[StepUse] = (),
) -> tuple[OomReport, tuple[Change, ...]]:
    """The report's `oom` and `advice`."""
    oom = oom_of(failure, leak)
    failure.leak = _cure(leak) if (oom.why_now or "").startswith("a leak") else None
    settings = settings or failure.settings
    advice = advise(failure, settings, uses)
    changes = advice.changes
    if not settings.is_trainers:
        changes = tuple(in_own_loop(change) for change in changes)
    texts = tuple(change.text for change in changes)
    return replace(oom, advice=texts, fit=advice.fit, no_help=advice.no_help), changes


def in_own_loop(change: Change) -> Change:
    """The same change for a script whose loop is its own: it stands in `in_script`, and `set` is empty.

    >>> in_own_loop(Change(text="...", set={"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2})).text
    'batch size 4, gradients of 2 batches in each step'
    """
    if not change.set:
        return change
    values = {name: value for name, value in change.set.items() if (name, value) != ("gradient_accumulation_steps", 1)}
    words = [_IN_WORDS.get(name, f"{name}={{}}").format(value) for name, value in values.items()]
    return replace(change, text=", ".join(words), set={}, in_script={**change.in_script, **change.set})


def _cure(leak: LeakReport) -> str:
    suspect = next(iter(leak.suspects), None)
    if suspect is None:
        return "find what grows at each step"
    return suspect.cure or f"keep less in {suspect.held_by}"
