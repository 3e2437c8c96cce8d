"""The table of remedies: what may let a training fit that has run out of memory, and what it changes about it.

A remedy is a function from the training's settings and the batch that failed to other settings, the smallest change
first. Whether it fits is not decided here: those with `is_planned` are planned by `forgather-mem run` after the
training has ended, the others, and all of them where there is no plan, are only named.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace

from forgather_mem.diagnose.oom import census_remedies
from forgather_mem.diagnose.oom.context import RunSettings
from forgather_mem.diagnose.oom.messages import OF_TORCH, PINNED
from forgather_mem.diagnose.oom.place import MODULE_IS_MADE
from forgather_mem.diagnose.oom.remedy import ACTIVATIONS, NOTHING, NUMBERS, SPEED, WHEN, Case, Remedy, doing, setting
from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.report import Change
from forgather_mem.units import MIB, format_bytes

_PHASES = " ".join(PHASES)
_ANYWHERE = f"{_PHASES} callback copy generating"
_PASSES = "forward backward"
_BUILDS_A_MODEL = frozenset(
    (MODULE_IS_MADE, "from_pretrained", "from_config", "_from_config", "init_weights", "_apply")
)
_STATE = ("optimizer",)
_OF_PARAMETERS = "parameters", "gradients", "optimizer"


def plannable(case: Case) -> Iterator[tuple[Remedy, list[Change]]]:
    """Ladders of changes, by what they change about the training: the first of each that fits is worth telling."""
    for remedy in sorted(REMEDIES, key=lambda remedy: remedy.alters):
        if remedy.is_planned and (found := remedy.offers(case)):
            yield from ((remedy, ladder) for ladder in ([found] if remedy.is_ladder else [[one] for one in found]))


def may_help(case: Case) -> list[Change]:
    """What may help, by what it changes about the training."""
    found: dict[str, Change] = {}
    has_cause = any(remedy.is_cause and remedy.offers(case) for remedy in REMEDIES)
    for remedy in sorted(REMEDIES, key=lambda remedy: remedy.alters):
        offered = remedy.offers(case)
        if has_cause and (remedy.is_ladder or remedy.reduces):  # it would fail later
            continue
        if remedy.is_ladder:  # the first rung is too little more often than not
            offered = offered[1:] or offered
        enough = [change for change in offered if remedy.may_be_enough(change, case)]
        for change in enough[:1] if remedy.is_ladder else enough:
            found.setdefault(change.text, change)
    return list(found.values())


def smaller_batches(case: Case) -> list[Change]:
    """As many rows a step in smaller micro-batches, the largest first."""
    settings = case.settings
    if case.keeps_graphs or (case.phase == "other" and case.failure is not None and case.failure.asks_at_once):
        return []
    rows = settings.number("per_device_train_batch_size", case.rows or 1)
    accumulation = settings.number("gradient_accumulation_steps")
    whole = rows * accumulation
    parts = (part for part in range(accumulation + 1, min(whole, WHEN.most_parts) + 1) if whole % part == 0)
    sizes = [size for size in (whole // part for part in parts) if rows % size == 0 or rows & (rows - 1)]
    note = "as many rows a step, in smaller parts"
    return [
        setting(note, per_device_train_batch_size=size, gradient_accumulation_steps=whole // size) for size in sizes
    ]


def _fewer_rows(case: Case) -> Iterator[Change]:
    """Of what is loaded at once: in a Trainer that is all batches of a step, before it trains on the first."""
    if not case.settings.is_trainers:
        yield from smaller_batches(case)
    rows = case.settings.number("per_device_train_batch_size") if case.settings.is_trainers else 1
    while rows > 1:
        rows //= 2
        yield setting("changes the training; a step's batches are loaded at once", per_device_train_batch_size=rows)


def _checkpointing(case: Case) -> Iterator[Change]:
    name, settings = checkpointing_name(case.settings), case.settings
    if settings.can_checkpoint:
        yield setting("keeps fewer activations", **{name: True})


def checkpointing_name(settings: RunSettings) -> str:
    """The name of gradient checkpointing in the run's version of transformers."""
    newer = "activation_checkpointing"
    return newer if newer in settings.arguments else "gradient_checkpointing"


def _optimizers(case: Case) -> Iterator[Change]:
    now = str(case.settings.arguments.get("optim") or "")
    if not now and case.phase != "optimizer":  # of a loop of the user's: nobody knows which it is
        return
    if case.on_device and now == "adamw_torch":
        yield setting("no copies of all tensors at once", optim="adamw_torch_fused")
    if now and case.on_device and importlib.util.find_spec("bitsandbytes"):
        yield setting("8-bit states; embeddings and small tensors in float32", optim="adamw_bnb_8bit")
    if now not in ("adafactor", "sgd"):
        yield setting("another optimizer: rows and columns instead of states", optim="adafactor")
    yield setting("another optimizer, without state: it needs another learning rate", optim="sgd")


def _shorter(case: Case) -> Iterator[Change]:
    length = case.length or 0
    while length > WHEN.shortest:
        length = length * 3 // 4
        text = f"max length {'' if case.failure is None else 'about '}{length:,}"
        if case.failure is not None and not case.failure.is_counted:
            text = "a smaller max length"
        yield doing(text, "cuts longer samples", max_length=length)


def _evaluation_batches(case: Case) -> Iterator[Change]:
    rows = case.settings.number("per_device_eval_batch_size", case.rows or 1)
    while rows > 1:
        rows //= 2
        yield setting(per_device_eval_batch_size=rows)


def _keeps_predictions(case: Case) -> bool:
    arguments = case.settings.arguments
    is_reduced = arguments.get("prediction_loss_only") or arguments.get("batch_eval_metrics")
    predicts = case.failure is not None and "predict" in case.failure.functions
    return bool((case.settings.has_metrics or predicts) and not is_reduced)


def _evaluation_keeps(case: Case) -> Iterator[Change]:
    if _keeps_predictions(case) and case.on_device and not case.settings.arguments.get("eval_accumulation_steps"):
        yield setting("predictions go to the host after each batch", eval_accumulation_steps=1)


def _fewer_predictions(case: Case) -> Iterator[Change]:
    if _keeps_predictions(case) and not case.settings.filters_logits:
        yield doing(
            "preprocess_logits_for_metrics=lambda logits, labels: "
            "(logits[0] if isinstance(logits, tuple) else logits).argmax(-1)",
            "compute_metrics is given token ids",
            preprocess_logits_for_metrics="argmax",
        )
    if _keeps_predictions(case):
        yield setting("gives the loss only, no metrics", prediction_loss_only=True)


def _fewer_workers(case: Case) -> Iterator[Change]:
    workers = case.settings.number("dataloader_num_workers", 0)
    if workers:
        yield setting("samples are made in this process", dataloader_num_workers=0)
        if case.settings.number("dataloader_prefetch_factor", 2) > 1:
            yield setting("half the batches in flight", dataloader_prefetch_factor=1)


def _generation(case: Case) -> Iterator[Change]:
    settings = case.settings
    if settings.arguments.get("predict_with_generate"):
        yield setting(per_device_eval_batch_size=1)
    else:
        yield doing("generate from one prompt at a time, then from more", rows=1)
    if settings.number("generation_num_beams") > 1:
        yield setting("one sequence for each sample", generation_num_beams=1)
    most = settings.number("generation_max_length", 0)
    if most:
        yield setting("keys and values of half as many tokens", generation_max_length=most // 2)
    else:
        yield doing("half as many max_new_tokens")


def _half_weights(case: Case) -> Iterator[Change]:
    how = "model.to(torch.bfloat16)" + ("" if case.settings.is_trainers else ", and inputs of floats")
    if case.place == "startup":
        how = "torch.set_default_dtype(torch.bfloat16) before the model is made"
    if case.settings.dtype in ("", "float32"):
        yield doing(f"the weights in bfloat16: {how}", "less exact, half the bytes", dtype="bfloat16")


def _fewer_parameters(case: Case) -> Iterator[Change]:
    yield doing("train fewer parameters (LoRA), or shard them over several devices (FSDP, DeepSpeed ZeRO)")


def _checkpoints(case: Case) -> Iterator[Change]:
    if not case.settings.is_trainers:
        yield doing("torch.save to a file, of the model, then of the optimizer, without a copy of them in memory")
        return
    functions = case.failure.functions if case.failure is not None else ()
    if "_save_optimizer_and_scheduler" in functions:  # else it was the model itself
        # The model is saved by then, and what was in use is all there is without the rest
        predicted = case.failure.used_bytes if case.failure is not None and not case.failure.freed_bytes else None
        alone = setting("a resumed run starts without optimizer state", save_only_model=True)
        yield replace(alone, predicted_bytes=predicted)
    yield setting("no checkpoint before its end: save the model after it", save_strategy="no")


def _resuming(case: Case) -> Iterator[Change]:
    if not case.settings.is_trainers:
        yield doing("torch.load(..., mmap=True), and delete what it returns after load_state_dict")
        return
    yield doing(
        "start from the checkpoint's weights: from_pretrained(CHECKPOINT), train() without resuming",
        "step and optimizer start from scratch",
        resume_from_checkpoint=False,
    )


def _pinned(case: Case) -> Iterator[Change]:
    failure = case.failure
    if failure is not None and (failure.found.kind == PINNED or "pin_memory" in failure.functions):
        yield setting("no second, page-locked copy", dataloader_pin_memory=False)


def _fragments(case: Case) -> Iterator[Change]:
    """Where torch's allocator keeps enough that it, or a library beside it, can't use."""
    failure = case.failure
    unused = failure.reserved_unused_bytes if failure is not None and case.on_device else None
    if failure is None or unused is None or unused < max(failure.requested_bytes or 0, MIB):
        return
    if not failure.found.kind.endswith(OF_TORCH):
        text = f"torch.cuda.set_per_process_memory_fraction({WHEN.to_torch_frac}) before the training"
        yield doing(text, f"{format_bytes(unused)} are kept by torch", memory_fraction=WHEN.to_torch_frac)
    elif "expandable_segments:True" not in case.settings.allocator_conf:
        name = "PYTORCH_HIP_ALLOC_CONF" if failure.found.kind.startswith("HIP") else "PYTORCH_CUDA_ALLOC_CONF"
        value = ",".join(filter(None, (case.settings.allocator_conf, "expandable_segments:True")))
        yield doing(f"{name}={value}", f"{format_bytes(unused)} are free, in small pieces", **{name: value})


def _shared_memory(case: Case) -> Iterator[Change]:
    yield doing("a larger /dev/shm: docker run --shm-size=1g", "docker gives 64 MiB unless told otherwise")
    yield doing("NCCL_SHM_DISABLE=1", "GPUs without a direct link then use the network", NCCL_SHM_DISABLE="1")


def _attention(case: Case) -> Iterator[Change]:
    if case.settings.attention == "eager":
        yield doing("attn_implementation='sdpa'", "keeps no weights of attention", attn_implementation="sdpa")


def _data_in_a_file(case: Case) -> Iterator[Change]:
    if case.failure is None or _BUILDS_A_MODEL.isdisjoint(case.failure.functions):
        yield doing("map the data instead of loading it: datasets.load_from_disk, numpy.load(mmap_mode='r')")


REMEDIES: tuple[Remedy, ...] = (
    Remedy("/dev/shm", NOTHING, _shared_memory),
    Remedy(_PHASES, NOTHING, _pinned),
    Remedy(_ANYWHERE, NOTHING, census_remedies.needless, is_cause=True),
    Remedy(_PASSES, NOTHING, census_remedies.each_pass),
    Remedy(_ANYWHERE, NOTHING, census_remedies.keep_less),
    Remedy("library callback copy", NOTHING, census_remedies.callbacks),
    Remedy(_PASSES, NUMBERS, census_remedies.no_batch_fits, is_cause=True),
    Remedy(f"{_PASSES} other", NOTHING, smaller_batches, is_planned=True, is_ladder=True, reduces=ACTIVATIONS),
    Remedy(_PASSES, NOTHING, _attention, is_planned=True, reduces=ACTIVATIONS),
    Remedy("data", NOTHING, _fewer_rows, is_ladder=True, reduces=("the batch",)),
    Remedy("data forward evaluate generate other", NOTHING, census_remedies.at_once),
    Remedy("evaluate", NOTHING, _evaluation_batches, is_planned=True, is_ladder=True),
    Remedy("evaluate", NOTHING, _evaluation_keeps, is_planned=True),
    Remedy("generate generating", NOTHING, _generation),
    Remedy("startup", NOTHING, _data_in_a_file),
    Remedy("forward backward optimizer evaluate", NOTHING, _fragments),
    Remedy("data", SPEED, _fewer_workers),
    Remedy(_PASSES, SPEED, _checkpointing, is_planned=True, reduces=ACTIVATIONS),
    Remedy("evaluate", NUMBERS, _fewer_predictions, is_planned=True),
    Remedy(f"{_PASSES} optimizer", NUMBERS, _optimizers, is_planned=True, reduces=_STATE),
    Remedy(_PASSES, NUMBERS, _shorter, is_planned=True, is_ladder=True, reduces=ACTIVATIONS),
    Remedy(f"{_PASSES} optimizer", NUMBERS, _half_weights, is_planned=True, reduces=(*_OF_PARAMETERS, *ACTIVATIONS)),
    Remedy("startup", NUMBERS, _half_weights),
    Remedy("backward optimizer", NUMBERS, _fewer_parameters, reduces=_OF_PARAMETERS),
    Remedy("save", NUMBERS, _checkpoints),
    Remedy("resume", NUMBERS, _resuming),
)
