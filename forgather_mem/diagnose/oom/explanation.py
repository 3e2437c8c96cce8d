"""The report's account of a failure: why memory ran out at that moment, what was not the reason, what may help.

Nothing here imports torch or a sink: it runs at the end of every process of a watched command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forgather_mem.diagnose.oom.batch_shapes import batch_in_words, news_of
from forgather_mem.diagnose.oom.context import AHEAD, RunSettings
from forgather_mem.diagnose.oom.failure import NEEDLESS, Failure
from forgather_mem.diagnose.oom.memory_in_use import look_at_memory
from forgather_mem.diagnose.oom.messages import NCCL_SHM, PINNED
from forgather_mem.diagnose.oom.place import failure_at, stepping_optimizer, trained_by
from forgather_mem.diagnose.oom.recognition import OutOfMemory
from forgather_mem.diagnose.oom.remedies import checkpointing_name, held_much, keeps_predictions, keeps_steps, may_help
from forgather_mem.diagnose.oom.remedy import WHEN
from forgather_mem.engine.settings import asked_of_model
from forgather_mem.heap.census import OF_GRADIENT
from forgather_mem.heap.failed_call import CallbackFailure
from forgather_mem.telemetry.events import OPAQUE_PHASES, STEP_PHASES
from forgather_mem.telemetry.report import NOT_JUDGED, Change, LeakReport, OomReport
from forgather_mem.units import format_bytes

_OF_KIND = {
    "killed worker": "a data worker was killed, most likely by the kernel, for memory.",
    NCCL_SHM: "/dev/shm is full; NCCL passes data between the GPUs of a machine through it (docker: --shm-size).",
    PINNED: "page-locked memory, which is the host's, not the device's, could not be had.",
    "shared memory": "/dev/shm is full; data workers pass batches through it (docker: --shm-size).",
}
_OWN = f"watching takes up to {format_bytes(WHEN.own_bytes)}: alone it may end in another step"
_FIRST = {"evaluate": "the first evaluation", "save": "the first checkpoint", "resume": "a checkpoint was being loaded"}
_NO_BATCH = {
    "startup": "there is no batch yet",
    "resume": "there is no batch yet",
    "optimizer": "its memory is free by then",
    "save": "a checkpoint holds none",
    "evaluate": "evaluations have their own",
    "generate": "generation has its own",
}
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
    "optim": "the optimizer {}",
}
# What the report has from these records by the same names
_OF_FAILURE = ("step", "phase", "rank", "limit_bytes", "limit", "reserved_unused_bytes", "others_bytes")
_OF_ERROR = ("where", "requested_bytes", "kind", "error_type", "message")


def failure_outside(error: BaseException, found: OutOfMemory, rank: int = 0, reserve_bytes: int = 0) -> Failure:
    """What is known of an error outside any training, beyond its message."""
    model, optimizer = trained_by(error)
    optimizer = stepping_optimizer(error) or optimizer
    failure = failure_at(error, found, model, optimizer)
    failure.rank = rank
    is_trainers, returned = not _TRAINERS.isdisjoint(failure.functions), asked_of_model(getattr(model, "config", None))
    failure.settings = RunSettings(is_trainers=is_trainers, returned=returned)
    # A loop is watched once its optimizer has stepped, so this was its first step
    failure.step = int(optimizer is not None and failure.phase in STEP_PHASES)
    look_at_memory(failure, model, optimizer, reserve_bytes=reserve_bytes)
    return failure


def explained(failure: Failure, leak: LeakReport = NOT_JUDGED) -> tuple[OomReport, tuple[Change, ...]]:
    """The report's `oom` and `advice`: what may help, before anything is planned.

    Args:
        failure: What is known.
        leak: The verdict about leaks.
    """
    settings, batch, is_leak = failure.settings, failure.batch, _is_leak(failure, leak)
    suspect, held = next(iter(leak.suspects), None), _most_kept(failure)
    name = held if suspect is None else suspect.held_by
    text = (suspect and suspect.cure) or (f"keep less in {name}" if name else "find what grows at each step")
    cure = Change(text=text, note="what grows at each step fills any memory")
    # No batch is small enough for a leak
    changes = as_written([cure] if is_leak else may_help(failure), settings.is_trainers)
    no_help = ", ".join(_no_help(failure))
    why = why_now(failure)
    # In a first phase it is of what is held, too
    others = why, None if why and failure.phase not in _FIRST else _of_census(failure), _of_watching(failure)
    told = {name: getattr(failure, name) for name in _OF_FAILURE}
    told |= {name: getattr(failure.found, name) for name in _OF_ERROR}
    told |= {name: getattr(failure.callback, name, None) for name in ("callback", "line", "copied_bytes")}
    oom = OomReport(
        **told,
        layer=failure.layer if failure.phase not in ("data", "save", "resume", "startup") else None,
        free_bytes=None if failure.freed_bytes else failure.free_bytes,
        in_use=failure.in_use,
        batch=None if batch is None else {"rows": batch.rows, "length": batch.length},
        why_now=_of_leak(failure, leak) if is_leak else " ".join(filter(None, others)) or None,
        not_because=tuple(_not_because(failure, leak)),
        advice=tuple(change.text for change in changes),
        fit="not planned: memory grows at each step" if is_leak else None,
        no_help=f"{no_help}." if no_help else None,
    )
    return oom, tuple(changes)


def sentence(failure: Failure) -> str:
    """One line for a log."""
    where = f" in {failure.phase}" if failure.phase != "other" else ""
    where += f", in {failure.layer}" if failure.layer else ""
    limit = f"; the limit is {failure.limit}" if failure.found.where == "host" and failure.limit else ""
    return f"out of memory{where}: {failure.found}{limit}"


def why_now(failure: Failure) -> str | None:
    """The reason that best explains why memory did not run out earlier; None if unknown."""
    if failure.found.kind in _OF_KIND:
        return _OF_KIND[failure.found.kind]
    if failure.callback is not None:
        return _of_callback(failure.callback)
    of_what, frac = ("memory", WHEN.of_host_frac) if failure.found.where == "host" else ("device", WHEN.of_device_frac)
    others, limit = failure.others_bytes, failure.limit_bytes
    if others and limit and others > frac * limit:
        return f"other processes have {format_bytes(others)} of this {of_what}."
    if failure.phase == "optimizer" and failure.is_first:
        parameters = failure.in_use.get("parameters")
        beside = f", beside {format_bytes(parameters)} of parameters" if parameters else ""
        return f"the first optimizer step, which creates the optimizer state{beside}."
    if failure.phase == "generate":
        return _of_prompts(failure)
    if failure.phase in ("forward", "backward"):
        return _of_batch(failure) or _of_new_state(failure)
    if failure.phase == "startup":
        return "before the first step: it does not fit even without a batch." if failure.in_training else None
    if failure.phase in _FIRST and (failure.is_first or failure.phase == "resume") and failure.in_training:
        batch = failure.batch if failure.phase == "evaluate" else None
        of = f", of {batch_in_words(batch)}" if batch is not None else ""
        first = f"{_FIRST[failure.phase]}{f', at {failure.line}' if failure.line else of}."
        return " ".join(filter(None, (first, _of_kept(failure))))
    return _of_kept(failure)


def _not_because(failure: Failure, leak: LeakReport) -> Iterator[str]:
    """Usual suspicions that can be ruled out."""
    if leak.verdict == "no leak":
        yield f"Not a leak (under {format_bytes(leak.bytes_per_step_high)} a step)"
    unused, wanted = failure.reserved_unused_bytes, failure.found.requested_bytes
    if failure.found.where == "device" and unused is not None and wanted is not None and unused < wanted:
        yield f"Not fragmentation ({format_bytes(unused)} kept unused)"


def _no_help(failure: Failure) -> Iterator[str]:
    """What people often try, and why it would not have helped."""
    if failure.callback is not None:
        yield "a smaller batch (no pass is running)"
    # What is kept of batches is not free in a step of the optimizer
    elif failure.phase in _NO_BATCH and not (failure.phase == "optimizer" and _most_kept(failure)):
        batch = "per_device_train_batch_size" if failure.settings.is_trainers else "a smaller training batch"
        yield f"{batch} ({_NO_BATCH[failure.phase]})"
    elif failure.settings.arguments.get(name := checkpointing_name(failure.settings)):
        yield f"{name} (it is on)"
    if failure.found.where == "host":
        yield "empty_cache, expandable_segments (this is the host's memory)"


def as_written(changes: list[Change], is_trainers: bool) -> list[Change]:
    """These changes as the user writes them: only a Trainer has the names of a Trainer's arguments."""
    return changes if is_trainers else [in_own_loop(one) for one in changes if one.set.keys() <= _IN_WORDS.keys()]


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


# ---- leaks ----


def _is_leak(failure: Failure, leak: LeakReport) -> bool:
    if leak.verdict != "leak" or (leak.where == "device") != (failure.found.where == "device"):
        return False
    leaked_bytes = leak.bytes_per_step * max(0, failure.step - leak.since_step)
    return leaked_bytes > WHEN.held_frac * (failure.used_bytes or sum(failure.in_use.values()))


def _of_leak(failure: Failure, leak: LeakReport) -> str:
    first = next((suspect for suspect in leak.suspects if suspect.held_by), None)
    name, line = (_most_kept(failure), failure.line) if first is None else (first.held_by, first.allocated_at)
    at = "; it ran out" if first is None else f", {first.line_is}"
    held = (f", held by {name}" if name else "") + (f"{at} at {line}" if line else "")
    return f"a leak: {format_bytes(leak.bytes_per_step)} a step since step {leak.since_step:,}{held}."


def _most_kept(failure: Failure) -> str:
    """The container of the user's that holds much; empty if none does."""
    return next((one.name for one in held_much(failure) if one.collects), "")


# ---- the other reasons ----


def _of_callback(failed: CallbackFailure) -> str:
    if failed.copied_bytes is None:
        return f"{failed.callback} asked for it at {failed.line}: {failed.source}"
    of = " and ".join(failed.copied)
    what = f"a copy of {format_bytes(failed.copied_bytes)}" + (f" of {of}" if of else "")
    return f"{failed.callback} makes {what} at {failed.line}."


def _of_batch(failure: Failure) -> str | None:
    has_cause = any(held.kind in NEEDLESS for held in held_much(failure))
    if not failure.in_training or failure.batch is None or (failure.largest is None and has_cause):
        return None
    return news_of(failure.batch, failure.largest, is_first=not failure.steps_done)


def _of_kept(failure: Failure) -> str | None:
    """What an evaluation keeps until its end; None where that is not known."""
    asked = f", and what is returned for {failure.settings.returned}" if failure.settings.returned else ""
    keeps = failure.phase == "evaluate" and (keeps_predictions(failure) or keeps_steps(failure))
    return f"All predictions are kept until its end{asked}." if keeps else None


def _of_prompts(failure: Failure) -> str | None:
    """What a generation was to make; None where nobody knows."""
    if failure.batch is None:
        return None
    name, times = failure.each_prompt
    of = f": {failure.batch.rows // times:,} prompts x {name} {times:,}" if name else ""
    most = f", at most {failure.new_tokens:,} new tokens each" if failure.new_tokens else ""
    return f"{batch_in_words(failure.batch)}{of}{most}."


def of_loading(failure: Failure) -> str | None:
    """That much is in batches which data workers have loaded ahead."""
    size, each = failure.in_use.get(AHEAD, 0), failure.settings.number("loader.prefetch_factor")
    if size <= WHEN.held_frac * sum(failure.in_use.values()):
        return None
    return f"{format_bytes(size)} are batches loaded ahead by {failure.num_workers} workers x prefetch_factor {each}."


def _of_new_state(failure: Failure) -> str | None:
    """That the last step has made the optimizer's state, without which this pass would have had enough."""
    state_bytes, wanted = failure.in_use.get("optimizer", 0), failure.found.requested_bytes or 0
    if failure.steps_done != 1 or state_bytes < max(1, wanted - (failure.free_bytes or 0)):
        return None
    return f"the first pass beside the optimizer state, {format_bytes(state_bytes)}."


def _of_watching(failure: Failure) -> str | None:
    """That less was wanting than watching takes of a limit of this process alone; or, more likely than not, was.

    With what this step would still have asked for. An evaluation or a generation goes on growing, and so does the state
    that an optimizer makes, and a step that keeps the graphs of its passes.
    """
    wanted, free = failure.found.requested_bytes, failure.free_bytes
    grows = failure.phase in OPAQUE_PHASES or (failure.phase == "optimizer" and failure.is_first)
    grows |= any(held.kind == "earlier" and held.num_passes for held in failure.census)
    if wanted is None or free is None or grows or "RLIMIT" not in (failure.limit or ""):
        return None
    missing, most = (wanted // 2, f"At most {format_bytes(wanted)}") if failure.freed_bytes else (wanted - free, "")
    if not 0 < missing <= WHEN.own_bytes - failure.to_come_bytes:
        return None
    return f"{most or format_bytes(missing)} were missing, and {_OWN}."


def held_beside(failure: Failure) -> dict[str, int]:
    """By what it is called, what variables hold that is no part of a step; of much alone."""
    much = (held for held in held_much(failure) if held.kind in ("object", *NEEDLESS))
    return {held.part: held.num_bytes for held in much if held.name != OF_GRADIENT}


def _of_census(failure: Failure) -> str | None:
    """What takes much that a training may do without, or that one backward pass is to go through several passes."""
    wanted, largest_bytes = failure.found.requested_bytes or 0, max(failure.in_use.values(), default=1)
    for held in held_much(failure):
        if held.kind == "activations" and held.num_passes > 1:
            return f"{held.name} joins what uses each parameter {held.num_passes:,} times before one backward pass."
        if held.name == OF_GRADIENT:
            return f"{format_bytes(held.num_bytes)} are the {held.name} (create_graph=True)."
        if held.collects or held.kind in NEEDLESS or (held.kind == "object" and held.num_bytes >= largest_bytes):
            is_in = "are in" if held.part == held.name else "are the" if held.kind == "untrained" else "are"
            kept = f", added at {held.added_at}" if held.added_at else ""
            return f"{format_bytes(held.num_bytes)} {is_in} {held.part}{kept}."
    if failure.asks_at_once:
        return f"{failure.line} asks for {format_bytes(wanted)} at once."
    is_in_step = failure.steps_done or failure.phase not in ("startup", "other", "data")
    return None if is_in_step or not failure.ran_out_at else f"it ran out at {failure.ran_out_at}"
