"""Why memory may have run out whatever the batch: rules, asked in this order before the changes of the phase.

Each looks at what is known of the failing line and of what the user's variables hold, and says nothing if it does not
apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from forgather_mem.diagnose.oom.batches import Batches
from forgather_mem.diagnose.oom.context import FailureContext
from forgather_mem.diagnose.oom.own_lines import NOT_MEASURED, less_at_once
from forgather_mem.heap.failed_variables import HeldVariable
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.report import Change
from forgather_mem.units import MIB, format_bytes

_MUCH_FRAC = (0.05, 0.1)  # of what is in use, outside a pass and in one: a variable that is worth a word
_EVALUATIONS = ("evaluate", "generate")
_LIKE_THE_MODEL_FRAC = 0.05  # as far an entry may be from the size of the weights
_LOADING = ("startup", "resume", "other")


def causes(failure: FailureContext, batches: Batches) -> tuple[list[Change], bool]:
    """The changes that the rules suggest, in the order of the rules, and whether the batch size plays no part."""
    found = [(change, is_alone) for rule, is_alone in RULES for change in rule(failure, batches)]
    return [change for change, _ in found], any(is_alone for _, is_alone in found)


def graph_in_vain(failure: FailureContext, batches: Batches) -> Iterator[Change]:
    """A forward pass keeps a graph, but no backward pass follows."""
    graph = failure.operation.graph if failure.operation is not None else None
    if graph is not None:
        what = f"makes `{graph.name}` before {graph.line}" if graph.name else f"{graph.line} calls"
        note = f"no backward pass follows, but all layers keep theirs for one; {NOT_MEASURED}"
        yield Change(text=f"torch.no_grad() around what {what}", note=note)


def teacher_with_graph(failure: FailureContext, batches: Batches) -> Iterator[Change]:
    """A second model that is not trained runs with gradients enabled, and keeps a graph."""
    teacher = failure.operation.teacher if failure.operation is not None else None
    if teacher is not None and failure.phase in ("forward", "backward"):
        note = f"no optimizer has the parameters of that model, but all its layers keep theirs; {NOT_MEASURED}"
        yield Change(text=f"torch.no_grad() around what {teacher} calls", note=note)


def checkpoint_by_copying(failure: FailureContext, batches: Batches) -> Iterator[Change]:
    """The model or the optimizer's state is copied, as for a checkpoint."""
    operation = failure.operation
    if operation is None or operation.copied_bytes is None or not operation.copied or failure.callback is not None:
        return
    size, parts = format_bytes(operation.copied_bytes), " and ".join(operation.copied)
    note = f"it copies {size} of {parts}; writing takes no second copy in memory"
    yield Change(text=f"torch.save to a file at {failure.line}, not a copy", note=note)


def kept_in_a_list(failure: FailureContext, batches: Batches) -> Iterator[Change]:
    """A list grows from batch to batch, and holds more than the failed request."""
    in_callback = failure.callback is not None
    grows = in_callback or failure.phase in STEP_PHASES or failure.phase in _EVALUATIONS
    if grows and (not batches.known or batches.is_as_ever):
        wanted = (failure.requested_bytes or 0) if in_callback or failure.rows is not None else 0
        yield from (_less_in(held, failure) for held in large_variables(failure) if held.num_bytes >= wanted)


def too_much_at_once(failure: FailureContext, batches: Batches) -> Iterator[Change]:
    """One operation in the user's code requests far more memory than its operands take."""
    why = _no_batch(failure, batches)
    change = less_at_once(failure, why) if why is not None else None
    if change is not None:
        yield change


# Each with whether a smaller batch helps nothing where it speaks.
RULES: tuple[tuple[Callable[[FailureContext, Batches], Iterator[Change]], bool], ...] = (
    (graph_in_vain, True),
    (teacher_with_graph, True),
    (checkpoint_by_copying, True),
    (kept_in_a_list, False),
    (too_much_at_once, True),
)


def variable_changes(failure: FailureContext) -> Iterator[Change]:
    """Changes for what variables of the user's functions and callbacks hold; outside of loading, only for
    containers."""
    loads = failure.phase in _LOADING and failure.callback is None
    for held in large_variables(failure):
        yield _less_in(held, failure, "use {} again, or delete it before" if loads else "keep less in {}")


def large_variables(failure: FailureContext) -> Iterator[HeldVariable]:
    """The variables that hold enough to be mentioned, the largest first."""
    in_pass = failure.phase in STEP_PHASES and failure.callback is None
    least = max(MIB, int(_MUCH_FRAC[in_pass] * (failure.used_bytes or 0)), (failure.requested_bytes or 0) * in_pass)
    loads = failure.phase in _LOADING and failure.callback is None
    for held in failure.variables:
        if held.num_bytes >= least and (loads or held.collects):
            yield held


def is_much(num_bytes: int, failure: FailureContext) -> bool:
    """Whether this many bytes are worth mentioning for a failure outside a forward or backward pass."""
    return num_bytes >= max(MIB, int(_MUCH_FRAC[0] * (failure.used_bytes or 0)))


def _less_in(held: HeldVariable, failure: FailureContext, what: str = "keep less in {}") -> Change:
    if held.returned_by is not None:
        note = "of scores their argmax, of anything only what is used later; the library keeps all until the end"
        return Change(text=f"return less from {held.returned_by}: {format_bytes(held.num_bytes)} are kept", note=note)
    return Change(
        text=f"{what.format(held.name)}: {format_bytes(held.num_bytes)}",
        note="; ".join(_of_entries(held, failure)) or None,
    )


def _of_entries(held: HeldVariable, failure: FailureContext) -> Iterator[str]:
    """The number of entries, what they are, and the size once the container is full."""
    if held.num_items > 1:
        each, weights = held.num_bytes / held.num_items, failure.parts.get("parameters")
        is_copy = bool(weights) and abs(each - (weights or 0)) <= _LIKE_THE_MODEL_FRAC * (weights or 0)
        of = ", copies of the model's weights" if is_copy else ""
        yield f"{held.num_items:,} entries of {format_bytes(round(each))}{of}: at most {held.num_items // 2:,}"
        if held.most_items is not None and held.most_items > held.num_items:
            yield f"full, with {held.most_items:,}, it would take {format_bytes(round(each * held.most_items))}"
    if held.line is not None:
        yield held.line


def _no_batch(failure: FailureContext, batches: Batches) -> str | None:
    """The reason why the batch size plays no part in the failed request; None if it may."""
    operation, wanted = failure.operation, failure.requested_bytes or 0
    of_callback = f"in {failure.callback.callback}" if failure.callback is not None else ""
    operands = operation.operands if operation is not None else ()
    if operation is None or not operands:  # `trainer.train()` works on nothing
        return None
    if of_callback:
        return of_callback if not operation.in_pass and is_much(wanted, failure) else None
    if failure.phase == "forward":
        usual = batches.saved_bytes
        if batches.is_as_ever and usual is not None and wanted > max(usual, MIB):
            return f"batches as large as this one kept {format_bytes(usual)} at most"
    elif failure.phase == "evaluate":
        rows = failure.rows
        if rows is None:
            return None if operation.in_pass or not is_much(wanted, failure) else ""
        # Heads and rows may be one dimension; that of two rows any even number is a multiple tells nothing
        is_of_batch = any(rows in shape or (rows > 2 and shape[0] % rows == 0) for _, shape in operands)
        return None if is_of_batch else ""
    elif failure.phase == "other" and not operation.in_pass and is_much(wanted, failure):
        return ""
    return None
