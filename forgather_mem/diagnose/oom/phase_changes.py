"""Changes that help where memory runs out outside the two passes: data, optimizer, evaluation, checkpoints."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping

from forgather_mem.diagnose.oom.batches import KEPT_FREE_FRAC, Batches
from forgather_mem.diagnose.oom.causes import causes, is_much, large_variables, variable_changes
from forgather_mem.diagnose.oom.changes import (
    CHANGES_TRAINING,
    data_changes,
    is_enough,
    jump,
    set_to,
)  # fmt: skip
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings, dtype_argument, takes_optimizer
from forgather_mem.diagnose.oom.own_lines import NOT_MEASURED, less_at_once
from forgather_mem.diagnose.oom.place import MODULE_IS_MADE
from forgather_mem.diagnose.oom.shapes.optimizer_sizes import family_of, passing_bytes
from forgather_mem.diagnose.oom.shapes.pass_peak import BatchShape
from forgather_mem.heap.failed_callback import CallbackFailure
from forgather_mem.telemetry.report import Change
from forgather_mem.units import format_bytes

_BUILDS_A_MODEL = frozenset(
    {
        "from_pretrained", "from_config", "_load_pretrained_model", "post_init", "init_weights", "_init_weights",
        "reset_parameters", "_apply", "cuda", "to_empty", MODULE_IS_MADE,
    }
)  # fmt: skip
_ADDS_TOKENS = "_init_added_embeddings_weights_with_mean"
_READS_A_FILE = frozenset(
    {
        "read_csv", "read_json", "read_parquet", "read_array", "read_table", "load_dataset", "load_from_disk",
        "fromfile", "loadtxt", "genfromtxt",
    }
)  # fmt: skip
_FEW_PREDICTIONS = 8  # after so many batches what is kept of them is what counts, not a batch
_SAVES_THE_OPTIMIZER = frozenset({"_save_optimizer_and_scheduler"})
_LOADS_THE_OPTIMIZER = frozenset({"_load_optimizer_and_scheduler"})
# How much more than at its failure a generation takes until its end: an estimate, since this is never observed.
_UNSEEN_OF_GENERATION = 4
_OF_WHOLE = 1.05
_TOLD_APART = "lists, copies of weights, caches (a leak report names them)"
# What a training computes with, instead of what numpy makes by itself.
_NARROW = {"float64": "float32", "complex128": "complex64", "int64": "int32"}
_8_BIT, _PAGED, _TORCHAO = "adamw_bnb_8bit", "paged_adamw_32bit", "adamw_torch_8bit"


def callback_changes(failure: FailureContext, callback: CallbackFailure, batches: Batches) -> list[Change]:
    """A callback's own memory does not fit: what it keeps or writes, not the training."""
    where = f"{callback.callback} ({callback.line})"
    if not callback.is_users:
        name = callback.callback.partition(".")[0]
        taken = "" if callback.copied_bytes is None else f", and {format_bytes(callback.copied_bytes)} less"
        note = f"{CHANGES_TRAINING} (without what it is there for{taken}); a smaller batch changes nothing of it"
        return [Change(text=f"the training without {name}", note=note)]
    if callback.copied_bytes is None:
        changes, _ = causes(failure, batches)
        if failure.rows is not None and failure.rows > 1 and not changes:
            fewer = max(1, failure.rows // 4)
            text = f"at most {fewer:,} rows at a time in {where}"
            changes = [Change(text=text, note=f"not {failure.rows:,}; {NOT_MEASURED}")]
        return changes or [Change(text=f"less memory in {where}", note="the training itself did not ask for it")]
    changes = [
        Change(text=f"torch.save to a file in {where}, not a copy", note="writing takes no second copy in memory")
    ]
    if failure.where == "device":
        note = f"{format_bytes(callback.copied_bytes)} on the host instead"
        changes.append(Change(text=f"tensors copied by .cpu(), one after the other, in {where}", note=note))
    return [*changes, *variable_changes(failure)]


def optimizer_changes(failure: FailureContext, settings: RunSettings, batches: Batches) -> list[Change]:
    """The optimizer's state, created in the first step, or its temporaries don't fit."""
    changes = list(_same_training(failure, settings))
    if _has_its_state(failure, settings, batches):
        text = f"less of what has grown since the first step: {_TOLD_APART}"
        note = f"{batches.num_steps:,} steps of this optimizer have gone well; {NOT_MEASURED}"
        grown = [] if any(large_variables(failure)) else [Change(text=text, note=note)]
        return [*changes, *grown]
    changes += sorted(_other_optimizers(failure, settings), key=lambda change: not is_enough(change, failure))
    half = Change(
        text=f"the weights in bfloat16: from_pretrained(..., {dtype_argument()}=torch.bfloat16)",
        in_script={"dtype": "bfloat16"},
        note=f"{CHANGES_TRAINING} (less exact); halves weights, gradients and the optimizer's state; {NOT_MEASURED}",
    )
    return [*changes, half]


def _has_its_state(failure: FailureContext, settings: RunSettings, batches: Batches) -> bool:
    """Whether steps have succeeded with the complete optimizer state: then another optimizer does not help."""
    state, whole = failure.parts.get("optimizer", 0), settings.optimizer_bytes
    is_made = "_init_group" in failure.frames  # of parameters that were frozen until now
    return bool(batches.num_steps and whole) and not is_made and 0 < state <= _OF_WHOLE * (whole or 0)


def _same_training(failure: FailureContext, settings: RunSettings) -> Iterator[Change]:
    """The same optimizer, kept elsewhere or without temporaries; on the host there is no elsewhere."""
    if not settings.is_trainers and any(name.startswith("_multi_tensor_") for name in failure.frames):
        note = f"one tensor after the other, the same numbers; {NOT_MEASURED}"
        yield Change(text="foreach=False for the optimizer", in_script={"foreach": False}, note=note)
    if failure.where == "host":
        return
    if settings.optim == "adamw_torch":
        yield set_to(
            f"no copies of all tensors at once ({format_bytes(settings.trained_bytes or 0)}); {NOT_MEASURED}",
            optim="adamw_torch_fused",
        )
    if family_of(settings.optim) == "adamw" and importlib.util.find_spec("bitsandbytes") is not None:
        yield set_to(f"states move to the host where the device is full, slower; {NOT_MEASURED}", optim=_PAGED)
    note = f"the optimizer's state on the host, slower; {NOT_MEASURED}"
    yield Change(text="DeepSpeed ZeRO or FSDP with offload", note=note)


def _other_optimizers(failure: FailureContext, settings: RunSettings) -> Iterator[Change]:
    """Those with a smaller state than the configured one."""
    now = settings.state_of(settings.optim)
    has_8_bit = failure.where == "device" and importlib.util.find_spec("bitsandbytes") is not None
    has_torchao = importlib.util.find_spec("torchao") is not None and takes_optimizer(_TORCHAO)
    kinds = (
        (_8_BIT, has_8_bit, "8-bit states; embeddings and small tensors in float32"),
        (_TORCHAO, has_torchao, "8-bit states, of torchao"),
        ("adafactor", True, "rows and columns instead of states"),
        ("sgd", True, "no optimizer state; needs another learning rate"),
    )
    for name, is_there, note in kinds:
        state = settings.state_of(name)
        if not is_there or name == settings.optim or state is None or (now is not None and state >= now):
            continue
        yield set_to(
            f"{CHANGES_TRAINING} (another optimizer); {note}", _with(name, state, failure, settings), optim=name
        )


def _with(optim: str, state_bytes: int, failure: FailureContext, settings: RunSettings) -> int | None:
    """Predicted bytes of the step with this optimizer: without the present one's state, with its own."""
    if failure.used_bytes is None or not settings.trained_numbers:
        return None
    base = failure.used_bytes - failure.parts.get("optimizer", 0)
    passing = passing_bytes(optim, failure.where, settings.trained_bytes or 0, settings.largest_trained or 0)
    return base + state_bytes + passing


def evaluate_changes(failure: FailureContext, settings: RunSettings, batches: Batches) -> list[Change]:
    """Predictions kept until the end, or a batch that is too large by itself."""
    arguments = settings.arguments
    returns = settings.is_trainers and "predict" in failure.frames  # all that the model gives, without metrics, too
    kept = (
        (settings.has_metrics or returns)
        and not arguments.get("prediction_loss_only")
        and not arguments.get("batch_eval_metrics")
    )
    smaller = list(_smaller_evaluation(failure, settings, batches))
    if not kept or failure.predictions == 0:
        return smaller
    changes = []
    if failure.where == "device" and not arguments.get("eval_accumulation_steps"):
        changes.append(set_to("predictions go to the host after each batch", eval_accumulation_steps=1))
    several = failure.frames.count("nested_concat") > 1  # a model that gives more than its logits
    made = "outputs, labels: outputs[0].argmax(-1)" if several else "logits, labels: logits.argmax(-1)"
    filtering = Change(
        text=f"preprocess_logits_for_metrics=lambda {made}",
        in_script={"preprocess_logits_for_metrics": "argmax"},
        note="metrics from token ids, not from the whole vocabulary: compute_metrics is given these",
    )
    loss_only = set_to("gives the loss only, no metrics", prediction_loss_only=True)
    if not settings.filters_logits:
        changes.append(filtering)
    if not returns:
        changes.append(loss_only)
    if changes and (failure.predictions or 0) > _FEW_PREDICTIONS:
        return changes  # what is kept of all rows is as large with smaller batches
    return [*changes, *smaller]


def _smaller_evaluation(failure: FailureContext, settings: RunSettings, batches: Batches) -> Iterator[Change]:
    rows = int(settings.arguments.get("per_device_eval_batch_size") or failure.rows or 1)
    size = rows
    while size > 1:
        size //= 2
        fits = batches.fits_in(BatchShape(size, failure.width))
        if fits or (fits is None and size <= rows / 4):
            break
    if size < rows:
        estimate = batches.predicted(BatchShape(size, failure.width))
        note = None if estimate else f"smaller batches in evaluations; {NOT_MEASURED}"
        note = "; ".join(filter(None, (jump("batch", rows, size), note))) or None
        yield set_to(note, None if estimate is None else round(estimate.bytes), per_device_eval_batch_size=size)
    elif failure.length:
        text = f"max length {failure.length // 2:,} in the evaluation set"
        yield Change(text=text, in_script={"max_length": failure.length // 2}, note=NOT_MEASURED)
    elif failure.rows == 1:
        text = "one sample in parts, as tiles of an image, or smaller samples in the evaluation"
        yield Change(text=text, note=f"its batch is 1 already; {NOT_MEASURED}")


def generate_changes(failure: FailureContext, settings: RunSettings, batches: Batches) -> list[Change]:
    """Fewer sequences at once, or shorter ones."""
    arguments, changes = settings.arguments, []
    rows = int(arguments.get("per_device_eval_batch_size") or 1)
    if arguments.get("predict_with_generate") and rows > 1:
        changes.append(set_to(f"fewer sequences at once; {NOT_MEASURED}", per_device_eval_batch_size=max(1, rows // 4)))
    if (arguments.get("generation_num_beams") or 1) > 1:
        changes.append(set_to(f"one sequence for each sample; {NOT_MEASURED}", generation_num_beams=1))
    if not changes:
        few = _fewer_sequences(failure)
        text = f"generate from {few} prompt{'s' * (few != 1)} at a time"
        changes.append(Change(text=text, in_script={"rows": few}, note=NOT_MEASURED))
    longest = arguments.get("generation_max_length")
    if longest:
        changes.append(
            set_to(f"keys and values of half as many tokens; {NOT_MEASURED}", generation_max_length=longest // 2)
        )
    else:
        changes.append(Change(text="half as many max_new_tokens", note=NOT_MEASURED))
    return changes


def _fewer_sequences(failure: FailureContext) -> int:
    """A quarter of the sequences that failed, or fewer if the memory they had taken does not allow as many to
    finish."""
    rows = failure.rows or 4
    few, taken = max(1, rows // 4), failure.parts.get("generation", 0)
    if failure.capacity_bytes is None or failure.used_bytes is None:
        return few
    needed = _UNSEEN_OF_GENERATION * (taken + (failure.requested_bytes or 0))
    while few > 1 and failure.used_bytes - taken + needed * few / rows > (1 - KEPT_FREE_FRAC) * failure.capacity_bytes:
        few //= 2
    return few


def save_changes(failure: FailureContext, settings: RunSettings, batches: Batches) -> list[Change]:
    """What writing a checkpoint creates in addition to what is in memory."""
    if not settings.is_trainers:
        text = "torch.save of the model, then of the optimizer, without a copy of them"
        return [Change(text=text, note=f"writing takes no second copy in memory; {NOT_MEASURED}")]
    arguments, changes = settings.arguments, []
    optimizer = not _SAVES_THE_OPTIMIZER.isdisjoint(failure.frames)
    only_model = set_to(f"{CHANGES_TRAINING} (a resumed run starts without optimizer state)", save_only_model=True)
    if optimizer and not arguments.get("save_only_model"):
        changes.append(only_model)
    if arguments.get("save_safetensors") and not optimizer:
        changes.append(set_to(f"tensors are written one by one; {NOT_MEASURED}", save_safetensors=False))
    changes.append(
        set_to(f"{CHANGES_TRAINING} (no checkpoint before its end); save the model after it", save_strategy="no")
    )
    if not optimizer and not arguments.get("save_only_model"):
        changes.append(only_model)
    return changes


def resume_changes(failure: FailureContext, settings: RunSettings, batches: Batches) -> list[Change]:
    """A checkpoint is in memory together with its destination."""
    if not settings.is_trainers:
        text = "torch.load(..., mmap=True), and delete what it returns after load_state_dict"
        return [
            *variable_changes(failure),
            Change(text=text, note=f"tensors are read from the file as they are used; {NOT_MEASURED}"),
        ]
    optimizer = not _LOADS_THE_OPTIMIZER.isdisjoint(failure.frames)
    weights = Change(
        text="start from the checkpoint's weights: from_pretrained(CHECKPOINT), train() without resuming",
        in_script={"resume_from_checkpoint": False},
        note="step and optimizer start from scratch",
    )
    without = Change(
        text="move optimizer.pt out of the checkpoint's folder",
        note="resumes at the same step; the optimizer starts from scratch, and must still fit",
    )
    return [without, weights] if optimizer else [weights]


def startup_changes(failure: FailureContext, settings: RunSettings, batches: Batches) -> list[Change]:
    """The model or the data don't fit before any training."""
    from_config = MODULE_IS_MADE in failure.frames and "from_pretrained" not in failure.frames
    model = Change(
        text="make the model in bfloat16: torch.set_default_dtype(torch.bfloat16) before it"
        if from_config
        else f"load the model in bfloat16: from_pretrained(..., {dtype_argument()}=torch.bfloat16)",
        in_script={"dtype": "bfloat16"},
        note=f"{CHANGES_TRAINING} (less exact); half the bytes of the weights; {NOT_MEASURED}",
    )
    data = Change(
        text="map the data instead of loading it: datasets.load_from_disk, numpy.load(mmap_mode='r')",
        note=f"pages are loaded when they are used; {NOT_MEASURED}",
    )
    if _ADDS_TOKENS in failure.frames:
        note = "new rows are drawn as all weights are; their mean and covariance need all rows in float32"
        text = "resize_token_embeddings(..., mean_resizing=False)"
        return [Change(text=text, in_script={"mean_resizing": False}, note=note), model]
    at_once = list(_less_at_once(failure))
    if failure.array_type is not None:
        return [*at_once, data]
    if not _BUILDS_A_MODEL.isdisjoint(failure.frames) or failure.where == "device":
        return [model, data]
    return [*at_once, data, model]


def _less_at_once(failure: FailureContext) -> Iterator[Change]:
    """Changes where a line of the user's creates one large array or tensor, not where a file is read."""
    innermost = failure.frames[-1] if failure.frames else ""
    reads = innermost.startswith(("load", "read")) or not _READS_A_FILE.isdisjoint(failure.frames)
    change = less_at_once(failure)
    if change is not None and is_much(failure.requested_bytes or 0, failure) and not reads:
        yield change


def array_changes(failure: FailureContext) -> Iterator[Change]:
    """Changes for an array whose numbers are twice as wide as a training needs."""
    narrow = _NARROW.get(failure.array_type or "")
    if narrow is not None and failure.requested_bytes is not None:
        half = failure.requested_bytes // 2
        at_once = 1 if failure.operation is None else failure.operation.at_once
        yield Change(
            text=f"{narrow} instead of {failure.array_type}, {failure.line}" if failure.line else f"{narrow}",
            in_script={"dtype": narrow},
            predicted_bytes=None if failure.used_bytes is None else failure.used_bytes + at_once * half,
            note=f"{format_bytes(half)} instead of {format_bytes(failure.requested_bytes)}",
        )


BY_PHASE: Mapping[str, Callable[[FailureContext, RunSettings, Batches], list[Change]]] = {
    "startup": startup_changes,
    "data": data_changes,
    "optimizer": optimizer_changes,
    "evaluate": evaluate_changes,
    "generate": generate_changes,
    "save": save_changes,
    "resume": resume_changes,
}
"""The other phases are the passes of a step: `step_changes`."""
