"""Remedies by what the census has found: what no training needs, what holds much, and the callback that failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forgather_mem.diagnose.oom.context import DETACHED, EVALUATION, NO_GRAPH
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.remedy import WHEN, Case, doing
from forgather_mem.heap.census import Holding
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.report import Change
from forgather_mem.units import MIB, format_bytes

_LOADING = ("startup", "resume", "other")


def callbacks(case: Case) -> Iterator[Change]:
    assert case.failure is not None
    assert case.failure.callback is not None
    callback = case.failure.callback
    name = f"{callback.callback} ({callback.line})"
    if not callback.is_users:
        yield doing(
            f"the training without {callback.callback.partition('.')[0]}", "a smaller batch changes nothing of it"
        )
    elif callback.copied_bytes is None:
        yield doing(f"less memory in {name}", "the training itself did not ask for it")
    else:
        change = doing(f"torch.save to a file in {name}, not a copy", "writing takes no second copy in memory")
        # Without any of the copy there was enough, and with that a step fits: one has been made
        is_known = callback.copied and case.failure.steps_done and not case.failure.freed_bytes
        yield replace(change, predicted_bytes=case.failure.used_bytes if is_known else None)


def needless(case: Case) -> Iterator[Change]:
    """What the census has found that no training needs: graphs without a backward pass, several copies of the model."""
    failure = case.failure
    is_evaluation = case.phase in ("evaluate", "generate")
    for held in failure.census if failure is not None else ():
        size = format_bytes(held.num_bytes)
        if not _is_much(held, failure, of_wanted=1 / 2):
            continue
        if held.kind == "untrained":
            note = f"no optimizer has its parameters, but {size} are kept for a backward pass through it"
            yield doing(f"torch.no_grad() around what {held.name} computes", note, **{NO_GRAPH: held.name})
        elif is_evaluation and (held.kind == "earlier" or (held.kind == "activations" and held.num_passes)):
            of = f", and {held.name} keeps" if held.name else ", but it keeps"
            note = f"no backward pass follows{of} {size}"
            yield doing("torch.no_grad() around the evaluation", note, **{NO_GRAPH: EVALUATION})
        elif held.kind == "earlier":
            note = f"{size} are {held.part}, until a backward pass goes through them or they are detached"
            text = f"detach() what {held.name} keeps, or backward() after each pass"
            yield doing(text, note, **{DETACHED: held.name})
        elif held.kind == "copy" and held.num_items > 1:
            yield _less_in(held, loads=False)


def each_pass(case: Case) -> Iterator[Change]:
    for held in case.failure.census if case.failure is not None else ():
        if held.kind == "activations" and held.num_passes > 1 and held.name:
            text = f"backward() after each pass, if {held.name} is a sum over passes: gradients add up"
            yield doing(text, f"each parameter is used {held.num_passes:,} times before one backward pass")


def no_batch_fits(case: Case) -> Iterator[Change]:
    missing = case.failure.missing_bytes if case.failure is not None else 0
    if missing:
        note = f"no batch fits: gradients and optimizer need {format_bytes(missing)} more than there is"
        yield doing("fewer trained parameters (LoRA), a smaller type (bfloat16), or shards (FSDP, ZeRO)", note)


def keep_less(case: Case) -> Iterator[Change]:
    """The variables that hold enough to be mentioned; outside of loading, only containers."""
    failure = case.failure
    if failure is None:
        return
    loads = case.phase in _LOADING and failure.callback is None
    in_step = case.phase in STEP_PHASES and failure.callback is None
    for held in failure.census:
        is_object = held.kind in ("object", "copy") and (loads or held.collects)
        if is_object and _is_much(held, failure, of_wanted=float(in_step)):
            yield _less_in(held, loads)


def at_once(case: Case) -> Iterator[Change]:
    if case.failure is not None and case.failure.asks_at_once:
        size = format_bytes(case.failure.requested_bytes or 0)
        yield doing(f"less at once at {case.failure.line}: {size}", "as in parts of its rows, one after the other")


def _is_much(held: Holding, failure: Failure | None, of_wanted: float) -> bool:
    used, wanted = (failure.used_bytes or 0, failure.requested_bytes or 0) if failure is not None else (0, 0)
    return held.num_bytes >= max(MIB, WHEN.much_frac * used, of_wanted * wanted)


def _less_in(held: Holding, loads: bool) -> Change:
    size = format_bytes(held.num_bytes)
    items = f"{held.num_items:,} entries: at most {held.num_items // 2:,}" if held.num_items > 1 else ""
    text = f"use {held.name} again, or delete it before" if loads else f"keep less in {held.name}"
    return doing(f"{text}: {size}", items)
