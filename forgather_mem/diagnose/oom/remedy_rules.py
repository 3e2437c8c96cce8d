"""What the rows of `remedies` ask of a failure: whether they apply, and what they are called then."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from forgather_mem.diagnose.oom.batch_changes import (
    fewer_sequences,
)
from forgather_mem.diagnose.oom.context import dtype_argument
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.messages import PINNED
from forgather_mem.diagnose.oom.place import MODULE_IS_MADE
from forgather_mem.diagnose.oom.remedy import Case, joined
from forgather_mem.diagnose.oom.shapes.optimizer_sizes import passing_bytes
from forgather_mem.heap.census import Holding
from forgather_mem.heap.failed_call import FailedOperation
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.report import Change
from forgather_mem.units import MIB, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyThresholds:
    """What is worth a word, as set on the sets of benchmarks/results/ooms.md.

    Attributes:
        much_frac, much_in_pass_frac: Of what is in use: a variable or a request that is worth a word outside a forward
            or backward pass, and a variable in one.
        unused_frac: Of the capacity: memory that the allocator has reserved and does not use.
        left_to_libraries_frac: Of a device, for torch, so that libraries beside it get the rest.
        like_model_frac: Of the size of the weights, by which an entry that is a copy of them may differ.
        whole_state_times: Of the size of an optimizer's whole state: it does not grow.
        few_predictions: Batches of an evaluation after which what is kept of them counts, not a batch.
    """

    much_frac: float = 0.05
    much_in_pass_frac: float = 0.1
    unused_frac: float = 0.05
    left_to_libraries_frac: float = 0.9
    like_model_frac: float = 0.05
    whole_state_times: float = 1.05
    few_predictions: int = 8


WHEN = RemedyThresholds()
_LOADING = ("startup", "resume", "other")
_BUILDS_A_MODEL = frozenset(
    {
        "from_pretrained", "from_config", "_load_pretrained_model", "post_init", "init_weights", "_init_weights",
        "reset_parameters", "_apply", "cuda", "to_empty", MODULE_IS_MADE,
    }
)  # fmt: skip
_READS_A_FILE = frozenset(
    {
        "read_csv", "read_json", "read_parquet", "read_array", "read_table", "load_dataset", "load_from_disk",
        "fromfile", "loadtxt", "genfromtxt",
    }
)  # fmt: skip
# What a training computes with, instead of what numpy makes by itself.
_NARROW = {"float64": "float32", "complex128": "complex64", "int64": "int32"}


def has(case: Case, argument: str) -> bool:
    return bool(case.settings.arguments.get(argument))


def is_in(case: Case, *functions: str) -> bool:
    """Whether one of these functions is in the traceback."""
    return not set(functions).isdisjoint(case.failure.functions)


def operation(case: Case) -> FailedOperation:
    return case.failure.operation or FailedOperation()


def _is_much(num_bytes: int | None, failure: Failure) -> bool:
    return (num_bytes or 0) >= max(MIB, int(WHEN.much_frac * (failure.used_bytes or 0)))


# ---- the allocator ----


def _is_worth(case: Case, num_bytes: int | None) -> bool:
    """Whether so many free bytes would make a difference."""
    failure = case.failure
    least = max(failure.requested_bytes or 0, WHEN.unused_frac * (failure.capacity_bytes or 0), 1)
    return failure.where == "device" and (num_bytes or 0) >= least


def is_fragmented(case: Case) -> bool:
    """Whether torch's allocator keeps enough that it can't use."""
    is_worth = _is_worth(case, case.failure.memory.reserved_unused_bytes)
    return is_worth and "expandable_segments:True" not in case.settings.allocator_conf


def segments(case: Case) -> Mapping[str, object]:
    name = "PYTORCH_HIP_ALLOC_CONF" if case.failure.found.kind.startswith("HIP") else "PYTORCH_CUDA_ALLOC_CONF"
    return {name: ",".join(filter(None, (case.settings.allocator_conf, "expandable_segments:True")))}


def unused_text(case: Case, why: str) -> str:
    return f"{format_bytes(case.failure.memory.reserved_unused_bytes or 0)} {why}"


def has_graph_pools(case: Case) -> bool:
    return _is_worth(case, case.failure.parts.get("private pools"))


def pools(case: Case) -> str:
    pools = format_bytes(case.failure.parts.get("private pools", 0))
    return f"{pools} are in private pools of CUDA graphs, which nothing else can use"


# ---- the user's lines and variables ----


def needless(case: Case) -> Iterator[Change]:
    """What the census has found that no training needs: graphs without a backward pass, what no code reads again."""
    failure = case.failure
    is_evaluation = failure.phase in ("evaluate", "generate")
    for held in failure.census:
        size = format_bytes(held.num_bytes)
        if held.num_bytes < (failure.requested_bytes or 0) / 2 or not _is_much(held.num_bytes, failure):
            continue
        if held.kind == "untrained":
            note = f"no optimizer has its parameters, but {size} are kept for a backward pass through it"
            yield _without(held, case, f"torch.no_grad() around what {held.name} computes", note)
        elif is_evaluation and held.kind in ("activations", "earlier"):
            of = f", and {held.name} keeps" if held.name else ", but it keeps"
            yield _without(held, case, "torch.no_grad() around the evaluation", f"no backward pass follows{of} {size}")
        elif held.kind == "earlier":
            passes = f"{held.num_passes:,} passes" if held.num_passes > 1 else "an earlier pass"
            note = f"it keeps {size} of {passes} through the model until a backward pass goes through them"
            yield _without(held, case, f"detach() what {held.name} keeps, or backward() after each pass", note)
        elif held.is_unused:
            yield _without(held, case, f"del {held.name} before", f"{size} that nothing reads again")
        elif held.kind == "copy" and held.num_items > 1:
            yield _less_in(held, failure)


def _without(held: Holding, case: Case, text: str, note: str) -> Change:
    """A change after which this is not held; where steps like this one have gone well, nothing else is missing."""
    used, wanted = case.failure.used_bytes, case.failure.requested_bytes
    is_known = case.batches.is_as_ever and used is not None and wanted is not None
    return Change(
        text=text, note=note, predicted_bytes=(used or 0) + (wanted or 0) - held.num_bytes if is_known else None
    )


def kept(case: Case) -> Iterator[Change]:
    """A list that grows from batch to batch, and holds more than the failed request."""
    failure, batches = case.failure, case.batches
    in_callback = failure.callback is not None
    grows = in_callback or failure.phase in (*STEP_PHASES, "evaluate", "generate")
    if failure.phase == "resume" or (grows and (not batches.known or batches.is_as_ever)):
        wanted = (failure.requested_bytes or 0) if in_callback or failure.rows is not None else 0
        yield from (_less_in(held, failure) for held in large(failure) if held.num_bytes >= wanted)


def held(case: Case) -> Iterator[Change]:
    yield from (_less_in(held, case.failure) for held in large(case.failure))


def large(failure: Failure) -> Iterator[Holding]:
    """The variables that hold enough to be mentioned, the largest first; outside of loading, only containers."""
    in_pass = failure.phase in STEP_PHASES and failure.callback is None
    frac = WHEN.much_in_pass_frac if in_pass else WHEN.much_frac
    least = max(MIB, int(frac * (failure.used_bytes or 0)), (failure.requested_bytes or 0) * in_pass)
    for held in failure.census:
        if (
            held.kind in ("object", "copy")
            and not held.is_unused
            and held.num_bytes >= least
            and (_loads(failure) or held.collects)
        ):
            yield held


def _loads(failure: Failure) -> bool:
    return failure.phase in _LOADING and failure.callback is None


def _less_in(held: Holding, failure: Failure) -> Change:
    size = format_bytes(held.num_bytes)
    if held.returned_by is not None:
        note = "of scores their argmax, of anything only what is used later; the library keeps all until the end"
        return Change(text=f"return less from {held.returned_by}: {size} are kept", note=note)
    text = f"use {held.name} again, or delete it before" if _loads(failure) else f"keep less in {held.name}"
    return Change(text=f"{text}: {size}", note=joined(*_of_entries(held, failure)))


def _of_entries(held: Holding, failure: Failure) -> Iterator[str]:
    """The number of entries, what they are, and the size once the container is full."""
    if held.num_items > 1:
        each, weights = held.num_bytes / held.num_items, failure.parts.get("parameters", 0)
        is_copy = weights and abs(each - weights) <= WHEN.like_model_frac * weights
        of = ", copies of the model's weights" if is_copy else ""
        yield f"{held.num_items:,} entries of {format_bytes(round(each))}{of}: at most {held.num_items // 2:,}"
        if held.most_items is not None and held.most_items > held.num_items:
            yield f"full, with {held.most_items:,}, it would take {format_bytes(round(each * held.most_items))}"


def too_much_at_once(case: Case) -> bool:
    """Whether one operation in the user's code asks for more than a smaller batch could change."""
    failure, batches = case.failure, case.batches
    line, wanted = operation(case), failure.requested_bytes or 0
    if failure.line is None or not line.operands:  # `trainer.train()` works on nothing
        return False
    if failure.phase == "forward" and failure.callback is None:
        usual = batches.saved_bytes
        return batches.is_as_ever and usual is not None and wanted > max(usual, MIB)
    if failure.phase == "evaluate" and failure.callback is None and failure.rows is not None:
        rows = failure.rows
        # Heads and rows may be one dimension; that of two rows any even number is a multiple tells nothing
        return not any(rows in shape or (rows > 2 and shape[0] % rows == 0) for _, shape in line.operands)
    if failure.callback is None and failure.phase not in ("evaluate", "other"):
        return False
    return not line.in_pass and _is_much(wanted, failure)


def makes_much_data(case: Case) -> bool:
    """Whether a line of the user's own makes data, where no loader or Trainer makes a batch."""
    if case.failure.line is None or case.failure.requested_bytes is None:
        return False
    return case.failure.operation is not None and not operation(case).is_loaders and not case.settings.is_trainers


def less_at_once(case: Case) -> str:
    wanted = format_bytes(case.failure.requested_bytes or 0)
    return f"make less at once at {case.failure.line}: {wanted} are asked for there"


def in_parts(case: Case) -> str:
    named, kind = operation(case).named, case.failure.found.array_type
    than = f" than {kind}" if kind is not None else ""
    usual = case.batches.saved_bytes if case.failure.phase == "forward" else None
    kept = "" if usual is None else f"batches as large as this one kept {format_bytes(usual)} at most"
    in_parts = f"in parts, with what follows from it, or of a smaller type{than}"
    return joined(in_parts, f"it works on {named}" if named else "", kept) or ""


def makes_wide_array(case: Case) -> bool:
    return case.failure.found.array_type in _NARROW and case.failure.requested_bytes is not None


def narrow(case: Case) -> str:
    return _NARROW[case.failure.found.array_type or ""]


def narrow_text(case: Case) -> str:
    line = case.failure.line
    return f"{narrow(case)} instead of {case.failure.found.array_type}, {line}" if line else narrow(case)


def narrow_bytes(case: Case) -> int | None:
    used, half = case.failure.used_bytes, (case.failure.requested_bytes or 0) // 2
    return None if used is None else used + operation(case).at_once * half


# ---- callbacks ----


def in_callback(case: Case) -> str:
    callback = case.failure.callback
    assert callback is not None
    return f"{callback.callback} ({callback.line})"


def copied(case: Case, of: str) -> str:
    callback = case.failure.callback
    size = None if callback is None else callback.copied_bytes
    return "" if size is None else of.format(format_bytes(size))


def is_copy(case: Case) -> bool:
    return operation(case).copied_bytes is not None and bool(operation(case).copied)


def copy_note(case: Case) -> str:
    size, parts = format_bytes(operation(case).copied_bytes or 0), " and ".join(operation(case).copied)
    return f"it copies {size} of {parts}; writing takes no second copy in memory"


# ---- the optimizer ----


def needs_less_state(case: Case) -> bool:
    """Whether the optimizer's state is not there yet, or grows: else another optimizer does not help."""
    state, whole = case.failure.parts.get("optimizer", 0), case.settings.optimizer_bytes
    is_made = is_in(case, "_init_group")  # of parameters that were frozen until now
    there = case.batches.num_steps and whole and 0 < state <= WHEN.whole_state_times * whole
    return bool(is_made or not there)


def is_on_device(case: Case) -> bool:
    return case.failure.where == "device"


def has_bitsandbytes() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None


def is_smaller(optim: str, case: Case) -> bool:
    settings = case.settings
    now, then = settings.state_of(settings.optim), settings.state_of(optim)
    return optim != settings.optim and then is not None and (now is None or then < now) and needs_less_state(case)


def bytes_with(optim: str, case: Case) -> int | None:
    """Predicted bytes of the step with this optimizer: without the present one's state, with its own."""
    failure, settings = case.failure, case.settings
    state = settings.state_of(optim)
    if failure.used_bytes is None or not settings.trained_numbers or state is None:
        return None
    base = failure.used_bytes - failure.parts.get("optimizer", 0)
    return (
        base + state + passing_bytes(optim, failure.where, settings.trained_bytes or 0, settings.largest_trained or 0)
    )


# ---- evaluations, checkpoints, the start ----


def keeps_predictions(case: Case) -> bool:
    settings = case.settings
    is_reduced = has(case, "prediction_loss_only") or has(case, "batch_eval_metrics")
    is_kept = settings.has_metrics or predicts(case)
    return is_kept and not is_reduced and case.failure.predictions != 0


def predicts(case: Case) -> bool:
    """Whether all that the model gives is kept, without metrics, too."""
    return case.settings.is_trainers and is_in(case, "predict")


def is_batch_of_evaluation(case: Case) -> bool:
    """Whether a smaller batch may help: not where what is kept of many of them is as large then."""
    can_keep_less = not (case.settings.filters_logits and predicts(case))
    is_many = (case.failure.predictions or 0) > WHEN.few_predictions
    return not (keeps_predictions(case) and can_keep_less and is_many)


def argmax(case: Case) -> str:
    several = case.failure.functions.count("nested_concat") > 1  # a model that gives more than its logits
    made = "outputs, labels: outputs[0].argmax(-1)" if several else "logits, labels: logits.argmax(-1)"
    return f"preprocess_logits_for_metrics=lambda {made}"


def sequences(case: Case) -> str:
    few = fewer_sequences(case)
    return f"generate from {few} prompt{'s' * (few != 1)} at a time"


def is_pinned(case: Case) -> bool:
    """Whether it was for a page-locked copy of a batch."""
    return case.failure.found.kind == PINNED or (has(case, "dataloader_pin_memory") and is_in(case, "pin_memory"))


def eval_rows(case: Case) -> int:
    return int(case.settings.arguments.get("per_device_eval_batch_size") or 1)


def is_trainers(case: Case) -> bool:
    return case.settings.is_trainers


def saves_model(case: Case) -> bool:
    return is_trainers(case) and not is_in(case, "_save_optimizer_and_scheduler")


def builds_model(case: Case) -> bool:
    builds = not _BUILDS_A_MODEL.isdisjoint(case.failure.functions) or is_on_device(case)
    return builds and case.failure.found.array_type is None


def makes_much(case: Case) -> bool:
    """Whether a line of the user's creates one large array or tensor, not where a model is made or a file is read."""
    failure = case.failure
    innermost = failure.functions[-1] if failure.functions else ""
    reads = innermost.startswith(("load", "read")) or not _READS_A_FILE.isdisjoint(failure.functions)
    is_much = failure.line is not None and _is_much(failure.requested_bytes, failure)
    return is_much and not reads and not builds_model(case)


def model_in_half(case: Case) -> str:
    if is_in(case, MODULE_IS_MADE) and not is_in(case, "from_pretrained"):
        return "make the model in bfloat16: torch.set_default_dtype(torch.bfloat16) before it"
    return f"load the model in bfloat16: from_pretrained(..., {dtype_argument()}=torch.bfloat16)"
