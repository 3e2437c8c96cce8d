"""The report's account of a failure, in a watched training or in a script without one.

Nothing here imports torch or a sink: it runs at the end of every process of a watched command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings, StepUse
from forgather_mem.diagnose.oom.memory_in_use import memory_then
from forgather_mem.diagnose.oom.messages import array_type
from forgather_mem.diagnose.oom.place import (
    Place,
    batch_on_the_way,
    failure_place,
    is_before_any_training,
    rows_outside_a_step,
    trained_by,
)
from forgather_mem.diagnose.oom.recognition import OutOfMemory
from forgather_mem.diagnose.oom.shapes.batch_shapes import Batch
from forgather_mem.diagnose.oom.shapes.layers import part_done
from forgather_mem.diagnose.oom.story import Story, oom_of
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
    "dataloader_pin_memory": "DataLoader(pin_memory={})",
    "torch_compile_mode": 'torch.compile(mode="{}")',
    "optim": "the optimizer {}",
}


def story_outside(error: BaseException, found: OutOfMemory, rank: int = 0, reserve_bytes: int = 0) -> Story:
    """What is known of an error outside any training, beyond its message."""
    model, optimizer = trained_by(error)
    place = failure_place(error, model, optimizer)
    has_trained = bool(getattr(optimizer, "state", None)) or not is_before_any_training(error)
    is_loss = place.operation is not None and place.operation.of_graph and place.operation.graph is None
    phase = place.phase or ("forward" if is_loss else "other" if has_trained else "startup")
    return Story(
        found=found,
        phase=phase,
        rank=rank,
        layer=place.layer,
        functions=place.functions,
        callback=place.callback,
        line=place.line,
        in_sample=place.in_sample,
        stays_in_batch=place.stays_in_batch,
        variables=place.variables,
        operation=place.operation,
        batch=rows_outside_a_step(error, phase)
        or batch_on_the_way(error)
        or (_batch_of_loss(place) if is_loss else None),
        part_done=part_done(model, place.layer),
        memory=memory_then(found, phase, model, optimizer, reserve_bytes=reserve_bytes),
    )


def _batch_of_loss(place: Place) -> Batch | None:
    """The batch, by the rows of the tensors of which a loss outside of modules is computed."""
    shapes = [shape for _, shape in place.operation.operands] if place.operation is not None else []
    return Batch(shapes[0][0], None) if shapes else None


def explained(
    story: Story,
    leak: LeakReport = NOT_JUDGED,
    settings: RunSettings | None = None,
    uses: Sequence[StepUse] = (),
) -> tuple[OomReport, tuple[Change, ...]]:
    """The report's `oom` and `advice`."""
    oom = oom_of(story, leak)
    memory, leaks = story.memory, oom.why_now is not None and oom.why_now.startswith("a leak")
    failure = FailureContext(
        where=story.found.where,
        kind=story.found.kind,
        phase=story.phase,
        step=story.step,
        used_bytes=memory.used_bytes,
        free_bytes=memory.free_bytes,
        requested_bytes=story.found.requested_bytes,
        reserved_unused_bytes=memory.reserved_unused_bytes,
        rows=story.batch.rows if story.batch is not None else None,
        length=story.batch.length if story.batch is not None else None,
        sample=story.batch.sample if story.batch is not None else (),
        length_of=story.batch.of if story.batch is not None else "",
        times_ahead=story.times_ahead,
        live_bytes=story.live_bytes,
        part_done=story.part_done,
        parts=memory.in_use,
        frames=story.functions,
        callback=story.callback,
        line=story.line,
        in_sample=story.in_sample,
        stays_in_batch=story.stays_in_batch,
        variables=story.variables,
        array_type=array_type(story.found.message),
        predictions=story.predictions,
        workers_bytes=memory.in_use.get("data workers"),
        limits_each="RLIMIT" in (memory.limit or ""),
        operation=story.operation,
        leak=_cure(leak) if leaks else None,
    )
    settings = settings or RunSettings(is_trainers=not _TRAINERS.isdisjoint(story.functions))
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
