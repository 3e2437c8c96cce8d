"""The report's account of a failure, in a watched training or in a script without one.

Nothing here imports torch or a sink: it runs at the end of every process of a watched command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.context import RunSettings
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
from forgather_mem.diagnose.oom.remedies import Case, checkpointing_name, may_help
from forgather_mem.diagnose.oom.story import oom_of
from forgather_mem.telemetry.report import NOT_JUDGED, Change, LeakReport, OomReport

# Functions of transformers' Trainer, around all that it does.
_TRAINERS = frozenset({"_inner_training_loop", "evaluation_loop", "_load_from_checkpoint", "_save_checkpoint"})
_NO_BATCH = {
    "startup": "there is no batch yet",
    "resume": "there is no batch yet",
    "optimizer": "its memory is free by then",
    "save": "a checkpoint holds none",
    "evaluate": "evaluations have their own",
    "generate": "generation has its own",
}
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
    has_trained = bool(getattr(optimizer, "state", None)) or not is_before_any_training(error)
    operation = failure.operation
    is_loss = operation is not None and operation.of_graph
    failure.phase = failure.phase or ("forward" if is_loss else "other" if has_trained else "startup")
    failure.batch = rows_outside_a_step(error, failure.phase) or batch_on_the_way(error)
    if failure.batch is None and is_loss and operation is not None and operation.rows:
        failure.batch = Batch(operation.rows, None)  # a loss outside of modules: the rows of its tensors
    failure.memory = memory_then(found, failure.phase, model, optimizer, failure.census, reserve_bytes=reserve_bytes)
    return failure


def explained(
    failure: Failure, leak: LeakReport = NOT_JUDGED, settings: RunSettings | None = None
) -> tuple[OomReport, tuple[Change, ...]]:
    """The report's `oom` and `advice`: what may help, before anything is planned."""
    oom = oom_of(failure, leak)
    settings = settings or RunSettings(is_trainers=not _TRAINERS.isdisjoint(failure.functions))
    case = Case(
        phase=failure.phase,
        settings=settings,
        rows=failure.rows,
        length=failure.length,
        on_device=failure.where == "device",
        failure=failure,
    )
    changes = may_help(case)
    if not settings.is_trainers:
        changes = [in_own_loop(change) for change in changes]
    why = None
    if (oom.why_now or "").startswith("a leak"):
        changes.insert(0, Change(text=_cure(leak), note="memory that grows at each step fills any device"))
        why = "not planned: memory grows at each step"
    texts = tuple(change.text for change in changes)
    no_help = ", ".join(_no_help(failure, settings))
    return replace(oom, advice=texts, fit=why, no_help=f"{no_help}." if no_help else None), tuple(changes)


def _no_help(failure: Failure, settings: RunSettings) -> Iterator[str]:
    """What people often try, and why it would not have helped."""
    if failure.callback is not None:
        yield "a smaller batch (no pass is running)"
    elif failure.phase in _NO_BATCH:
        batch = "per_device_train_batch_size" if settings.is_trainers else "a smaller training batch"
        yield f"{batch} ({_NO_BATCH[failure.phase]})"
    elif settings.arguments.get(checkpointing_name(settings)):
        yield f"{checkpointing_name(settings)} (it is on)"
    if failure.where == "host":
        yield "empty_cache, expandable_segments (this is the host's memory)"


def in_own_loop(change: Change, place: str = "") -> Change:
    """The same change for a script whose loop is its own: it stands in `in_script`, and `set` is empty.

    Args:
        change: For a Trainer.
        place: Where a batch gets its size, in words.

    >>> in_own_loop(Change(text="...", set={"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2})).text
    'batch size 4, gradients of 2 batches in each step'
    """
    if not change.set:
        return change
    values = {name: value for name, value in change.set.items() if (name, value) != ("gradient_accumulation_steps", 1)}
    words = [
        _IN_WORDS.get(name, f"{name}={{}}").format(value) + place * name.endswith("batch_size")
        for name, value in values.items()
    ]
    return replace(change, text=", ".join(words), set={}, in_script={**change.in_script, **change.set})


def _cure(leak: LeakReport) -> str:
    suspect = next(iter(leak.suspects), None)
    if suspect is None:
        return "find what grows at each step"
    return suspect.cure or f"keep less in {suspect.held_by}"
