"""The table of remedies: what may let a training fit that has run out of memory, and what it changes about it.

A remedy is a function from the training's settings and the batch that failed to other settings, the smallest change
first. Whether it fits is not decided here: those that are `PLANNED` are so by `forgather-mem run` after the
training has ended, the others, and all of them where there is no plan, are only named.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace

from forgather_mem.diagnose.oom.context import AHEAD, DETACHED, EVALUATION, LOADS_AHEAD, NO_GRAPH, WORKERS, RunSettings
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.messages import OF_TORCH, PINNED
from forgather_mem.diagnose.oom.place import MODULE_IS_MADE
from forgather_mem.diagnose.oom.remedy import ACTIVATIONS, NOTHING, NUMBERS, SPEED, WHEN, Remedy, doing, setting
from forgather_mem.heap.census import Holding
from forgather_mem.telemetry.events import PHASES, STEP_PHASES
from forgather_mem.telemetry.report import TENSORS, Change
from forgather_mem.units import MIB, format_bytes

_PHASES = " ".join(PHASES)
_ANYWHERE = f"{_PHASES} callback copy generating"
_PASSES = "forward backward"
_BUILDS_A_MODEL = {MODULE_IS_MADE, "from_pretrained", "from_config", "_from_config", "init_weights", "_apply"}
_OF_A_STEP = "per_device_train_batch_size", "gradient_accumulation_steps"
PLANNED = ""
_OF_STEPS = "`_PredictionLoop._predictions`"  # where Lightning keeps what the steps of a prediction have returned
PREDICTS = ("predict",)  # the functions of a process that was killed in a Trainer's prediction


def plannable(failure: Failure, largest: str = "") -> Iterator[tuple[Remedy, list[Change]]]:
    """Ladders of changes: the first of each that fits is worth telling.

    What makes the largest part of the plan smaller comes first, then by what they change about the training.
    """
    first = {remedy: largest.startswith(remedy.of_plan or remedy.reduces or ("?",)) for remedy in REMEDIES}
    for remedy in sorted(REMEDIES, key=lambda remedy: (not first[remedy], remedy.alters)):
        if not remedy.unplanned and (found := remedy.offers(failure)):
            yield from ((remedy, ladder) for ladder in ([found] if remedy.is_ladder else [[one] for one in found]))


def may_help(failure: Failure) -> list[Change]:
    """What may help, by what it changes about the training."""
    found: dict[str, Change] = {}
    has_cause = any(remedy.is_cause and remedy.offers(failure) for remedy in REMEDIES)
    for remedy in sorted(REMEDIES, key=lambda remedy: remedy.alters):
        offered = remedy.offers(failure)
        if has_cause and (remedy.is_ladder or remedy.reduces):  # it would fail later
            continue
        if remedy.is_ladder:  # the first rung is too little more often than not
            offered = offered[1:] or offered
        enough = [change for change in offered if remedy.may_be_enough(change, failure)]
        # What the layers behind ask for can be more than those before: of parts of a step then not the largest
        at = len(enough) // 2 if remedy.alters == NOTHING and failure.done_frac < 1 / 2 else 0
        for change in enough[at:][:1] if remedy.is_ladder else enough:
            found.setdefault(change.text, change)
    sizes = {held.name: held.num_bytes for held in failure.census}
    # What grows until all is evaluated or generated asks for more than was missing at the failure
    least = max(sizes.values(), default=0) if failure.phase in ("evaluate", "generate") else failure.least_missing_bytes

    def is_too_little(change: Change) -> bool:
        named = [sizes[name] for name in change.in_script if name in sizes]
        return bool(named) and max(named) < least

    return sorted(found.values(), key=is_too_little)


def smaller_batches(failure: Failure) -> list[Change]:
    """As many rows a step in smaller micro-batches, the largest first."""
    settings = failure.settings
    # A Trainer goes back after each batch, whatever is called several times for it
    if failure.keeps_graphs or (not settings.is_trainers and any(_each_pass(failure))):
        return []
    rows, accumulation = settings.number(_OF_A_STEP[0], failure.rows or 1), settings.number(_OF_A_STEP[1])
    whole, most = rows * accumulation, WHEN.most_parts * accumulation
    parts = (part for part in range(accumulation + 1, min(whole, most) + 1) if whole % part == 0)
    sizes = [size for size in (whole // part for part in parts) if rows % size == 0 or rows & (rows - 1)]
    note, rows_name, parts_name = "as many rows a step, in smaller parts", *_OF_A_STEP
    return [setting(note, **{rows_name: size, parts_name: whole // size}) for size in sizes]


def _fewer_rows(failure: Failure) -> Iterator[Change]:
    """Of what is loaded at once: in a Trainer that is all batches of a step, before it trains on the first."""
    if not failure.settings.is_trainers:
        yield from smaller_batches(failure)
    rows = failure.settings.number("per_device_train_batch_size") if failure.settings.is_trainers else 1
    note = "changes the training; a step's batches are loaded at once"
    yield from (setting(note, per_device_train_batch_size=rows >> at) for at in range(1, rows.bit_length()))


def _checkpointing(failure: Failure) -> Iterator[Change]:
    if failure.settings.can_checkpoint:
        yield setting("keeps fewer activations", **{checkpointing_name(failure.settings): True})


def checkpointing_name(settings: RunSettings) -> str:
    """The name of gradient checkpointing in the run's version of transformers."""
    newer = "activation_checkpointing"
    return newer if newer in settings.arguments else "gradient_checkpointing"


def _optimizers(failure: Failure) -> Iterator[Change]:
    now = str(failure.settings.arguments.get("optim") or "")
    if not now and failure.phase != "optimizer":  # of a loop of the user's: nobody knows which it is
        return
    if failure.found.where == "device" and now == "adamw_torch":
        yield setting("no copies of all tensors at once", optim="adamw_torch_fused")
    if now and failure.found.where == "device" and importlib.util.find_spec("bitsandbytes"):
        yield setting("8-bit states; embeddings and small tensors in float32", optim="adamw_bnb_8bit")
    if now not in ("adafactor", "sgd"):
        yield setting("another optimizer: rows and columns instead of states", optim="adafactor")
    yield setting("another optimizer, without state: it needs another learning rate", optim="sgd")


def _shorter(failure: Failure) -> Iterator[Change]:
    length = failure.length or 0
    while length > WHEN.shortest:
        length = length * 3 // 4
        text = f"max length {'' if failure.is_planned else 'about '}{length:,}"
        text = text if failure.is_planned or failure.is_counted else "a smaller max length"
        yield doing(text, "cuts longer samples", max_length=length)


def _evaluation_batches(failure: Failure) -> Iterator[Change]:
    results = sum(size for part, size in failure.in_use.items() if part.startswith("evaluation ("))
    # A Trainer that joins asks for what it has and the next batch's, so for twice that at most
    joins = keeps_predictions(failure) and failure.is_much(Holding(num_bytes=results), WHEN.held_frac, 0.5)
    keeps = failure.keeps_graphs or any(held.grows or held.kind == "earlier" for held in held_much(failure))
    if keeps or joins or "predict" in failure.functions or keeps_steps(failure):
        return  # as much is kept of smaller batches
    rows = failure.settings.number("per_device_eval_batch_size", failure.rows or 1)
    for at in range(1, rows.bit_length()):
        yield setting(per_device_eval_batch_size=rows >> at)


def keeps_predictions(failure: Failure) -> bool:
    """Whether an evaluation does, until its end."""
    settings = failure.settings
    is_reduced = settings.arguments.get("prediction_loss_only") or settings.arguments.get("batch_eval_metrics")
    return bool(settings.is_trainers and (settings.has_metrics or "predict" in failure.functions) and not is_reduced)


def keeps_steps(failure: Failure) -> bool:
    """Whether Lightning keeps what each step of a prediction returns, until its end."""
    is_told = bool(failure.settings.arguments.get("evaluate.keeps"))
    return is_told or any(held.name == _OF_STEPS for held in held_much(failure))


def held_much(failure: Failure) -> list[Holding]:
    """What is much of all that was in use, and of what was asked for."""
    return [held for held in failure.census if failure.is_much(held, WHEN.held_frac)]


def _evaluation_keeps(failure: Failure) -> Iterator[Change]:
    is_set = failure.settings.arguments.get("eval_accumulation_steps")
    if failure.found.where == "device" and not is_set and keeps_predictions(failure):
        yield setting("predictions go to the host after each batch", eval_accumulation_steps=1)


def _fewer_predictions(failure: Failure) -> Iterator[Change]:
    name, first = "preprocess_logits_for_metrics", "logits[0] if isinstance(logits, tuple) else logits"
    if keeps_predictions(failure) and (asked := failure.settings.returned):
        text = ", ".join(f"model.config.{one} = False" for one in asked.split(", "))
        yield doing(text, "the evaluation collects them with the logits", **dict.fromkeys(asked.split(", "), False))
    if keeps_predictions(failure) and not failure.settings.filters_logits:
        text = f"{name}=lambda logits, labels: ({first}).argmax(-1)"
        note = "changes only the evaluation: compute_metrics is given its result: take out its own argmax"
        yield doing(text, note, **{name: "argmax"})
    if keeps_predictions(failure):
        yield setting("changes only the evaluation: it returns the loss, no metrics", prediction_loss_only=True)


def _fewer_workers(failure: Failure) -> Iterator[Change]:
    held_bytes = failure.in_use.get(WORKERS, 0) + failure.in_use.get(AHEAD, 0)
    hold_much = held_bytes > WHEN.held_frac * sum(failure.in_use.values())
    workers = failure.num_workers or failure.settings.number("dataloader_num_workers", 0)
    if workers and (failure.phase == "data" or hold_much):
        yield setting("samples are made in this process", dataloader_num_workers=0)


def _less_ahead(failure: Failure) -> Iterator[Change]:
    each, ahead_bytes = failure.settings.number("loader.prefetch_factor", LOADS_AHEAD), failure.in_use.get(AHEAD, 0)
    freed_bytes = ahead_bytes - ahead_bytes * LOADS_AHEAD // each
    if freed_bytes > WHEN.held_frac * sum(failure.in_use.values()):
        note = f"up to {format_bytes(freed_bytes)} less: each worker loads {LOADS_AHEAD} batches ahead, not {each}"
        yield setting(note, dataloader_prefetch_factor=LOADS_AHEAD)


def _generation(failure: Failure) -> Iterator[Change]:
    if failure.generated:
        yield doing(f"generate without {failure.generated}", "it keeps those of all tokens until the last one")
    name, times = failure.each_prompt
    # An eighth: of 16 sequences 4 finished and 8 did not, 48 of 96 did not (two scripts)
    each = f"{name}={max(1, times // 8)}" + ", in several calls" * ("sequences" in name)
    fewer = [doing(each, f"each prompt is there {times:,} times", **{name: 1})] * bool(name)
    if times * times > (failure.rows or 0):  # more than there are prompts
        yield from fewer
    if failure.settings.arguments.get("predict_with_generate"):
        yield setting(per_device_eval_batch_size=1)
    elif failure.rows != times:
        yield doing("generate from one prompt at a time, then from more", rows=1)
    if times * times <= (failure.rows or 0):
        yield from fewer
    if "_prefill" not in failure.functions:  # a function of transformers': it has made no token yet
        yield doing("fewer new tokens")


def _half_weights(failure: Failure) -> Iterator[Change]:
    how = "model.to(torch.bfloat16)" + ("" if failure.settings.is_trainers else ", and inputs of floats")
    if failure.place == "startup":
        if _BUILDS_A_MODEL.isdisjoint(failure.functions):
            return
        how = "torch.set_default_dtype(torch.bfloat16) before the model is made"
    # In a plan nobody can cast the inputs of a loop of the user's
    if failure.settings.dtype in ("", "float32") and (failure.settings.is_trainers or not failure.is_planned):
        yield doing(f"the weights in bfloat16: {how}", "less exact, half the bytes", dtype="bfloat16")


def _fewer_parameters(failure: Failure) -> Iterator[Change]:
    yield doing("train fewer parameters (LoRA), or shard them over several devices (FSDP, DeepSpeed ZeRO)")


def _checkpoints(failure: Failure) -> Iterator[Change]:
    if not failure.settings.is_trainers:
        yield doing("torch.save to a file, of the model, then of the optimizer, without a copy of them in memory")
        return
    if "_save_optimizer_and_scheduler" in failure.functions:  # else it was the model itself
        # The model is saved by then, and what was in use is all there is without the rest
        predicted = None if failure.freed_bytes else failure.used_bytes
        alone = setting("a resumed run starts without optimizer state", save_only_model=True)
        yield replace(alone, predicted_bytes=predicted)
    if failure.line:
        yield doing(f"less memory at {failure.line}", "the trainer's own saving did not ask for it")
    yield setting("no checkpoint is written", save_strategy="no")


def _resuming(failure: Failure) -> Iterator[Change]:
    if not failure.settings.is_trainers:
        yield doing("torch.load(..., mmap=True), and delete what it returns after load_state_dict")
        return
    text = "start from the checkpoint's weights: from_pretrained(CHECKPOINT), train() without resuming"
    yield doing(text, "step and optimizer start from scratch", resume_from_checkpoint=False)


def _pinned(failure: Failure) -> Iterator[Change]:
    if failure.found.kind == PINNED or "pin_memory" in failure.functions:
        yield setting("no second, page-locked copy", dataloader_pin_memory=False)


def _fragments(failure: Failure) -> Iterator[Change]:
    """Where torch's allocator keeps enough that it, or a library beside it, can't use."""
    unused = failure.reserved_unused_bytes if failure.found.where == "device" else None
    if unused is None or unused < max(failure.found.requested_bytes or 0, MIB):
        return
    if not failure.found.kind.endswith(OF_TORCH):
        text = f"torch.cuda.set_per_process_memory_fraction({WHEN.to_torch_frac}) before the training"
        yield doing(text, f"{format_bytes(unused)} are kept by torch", memory_fraction=WHEN.to_torch_frac)
    elif "expandable_segments:True" not in failure.settings.allocator_conf:
        name = "PYTORCH_HIP_ALLOC_CONF" if failure.found.kind.startswith("HIP") else "PYTORCH_CUDA_ALLOC_CONF"
        value = ",".join(filter(None, (failure.settings.allocator_conf, "expandable_segments:True")))
        yield doing(f"{name}={value}", f"{format_bytes(unused)} are free, in small pieces", **{name: value})


def _shared_memory(failure: Failure) -> Iterator[Change]:
    yield doing("a larger /dev/shm: docker run --shm-size=1g", "docker gives 64 MiB unless told otherwise")
    yield doing("NCCL_SHM_DISABLE=1", "GPUs without a direct link then use the network", NCCL_SHM_DISABLE="1")


def _attention(failure: Failure) -> Iterator[Change]:
    if failure.settings.attention == "eager":
        yield doing("attn_implementation='sdpa'", "keeps no weights of attention", attn_implementation="sdpa")


def _data_in_a_file(failure: Failure) -> Iterator[Change]:
    loads = not failure.functions or any(part in one for one in failure.functions for part in ("load", "read"))
    if loads and _BUILDS_A_MODEL.isdisjoint(failure.functions):
        yield doing("map the data instead of loading it: datasets.load_from_disk, numpy.load(mmap_mode='r')")


# ---- by what the census has found, and the callback that failed ----


def _callbacks(failure: Failure) -> Iterator[Change]:
    callback = failure.callback
    assert callback is not None
    name = f"{callback.callback} ({callback.line})"
    if not callback.is_users:
        library = callback.callback.partition(".")[0]
        yield doing(f"the training without {library}", "a smaller batch changes nothing of it")
    elif callback.copied_bytes is None and failure.phase == "save" and "torch.save" in callback.source:
        yield doing(f"torch.save to a file in {name}, not into memory", "a file takes no memory")
    elif callback.copied_bytes is None and failure.found.requested_bytes:
        yield doing(f"less at once at {callback.line}: {format_bytes(failure.found.requested_bytes)}", callback.source)
    else:
        change = doing(f"torch.save to a file in {name}, not a copy", "writing takes no second copy in memory")
        # Without any of the copy there was enough, and with that a step fits: one has been made
        is_known = callback.copied and failure.steps_done and not failure.freed_bytes
        yield replace(change, predicted_bytes=failure.used_bytes if is_known else None)


def _needless(failure: Failure) -> Iterator[Change]:
    """What the census has found that no training needs: graphs without a backward pass, what no code reads again."""
    if failure.phase == "evaluate" and keeps_steps(failure):
        note = "else what predict_step returns is kept of all batches: a BasePredictionWriter writes it to files"
        yield doing("trainer.predict(..., return_predictions=False)", note, return_predictions=False)
    is_evaluation = failure.phase in ("evaluate", "generate")
    for held in failure.census:
        size = format_bytes(held.num_bytes)
        if not failure.is_much(held, WHEN.much_frac, of_wanted=1 / 2):
            continue
        if held.kind in ("untrained", "vain"):
            note = f"no optimizer has its parameters, but a backward pass through it takes {size}"
            yield doing(f"torch.no_grad() around what {held.name} computes", note, **{NO_GRAPH: held.name})
        elif is_evaluation and (held.kind == "earlier" or (held.kind == "activations" and held.num_passes)):
            of = f", and {held.name} keeps" if held.name else "; its graphs take"
            note = f"no backward pass follows{of} {size}"
            yield doing("torch.no_grad() around the evaluation", note, **{NO_GRAPH: EVALUATION})
        elif held.kind == "earlier":
            text = f"detach() what {held.name} keeps, or backward() without retain_graph"
            if held.num_passes:
                text = "backward() after each pass, without retain_graph"
                text += f"; if {held.name} trains nothing, torch.no_grad(), or detach() of what it keeps"
            yield doing(text, f"{size} are {held.part}", **{DETACHED: held.name})
        elif held.is_unused and (held.collects or failure.phase != "backward"):  # a graph may hold a tensor, too
            note, text = f"{size} that nothing reads again", f"delete {held.name} when it is no longer read"
            yield doing(text, note, **{held.name: "deleted"})
        elif held.kind == "copy" and held.num_items > 1:
            yield _less_in(held, loads=False)


def _each_pass(failure: Failure) -> Iterator[Change]:
    for held in failure.census:
        if held.kind == "activations" and held.num_passes > 1 and held.name:
            yield goes_back_each(held.name, held.num_passes)


def goes_back_each(name: str, num_passes: int) -> Change:
    """One backward pass for each pass, where `name` keeps the graphs of several."""
    text = f"backward() after each pass, if {name} is a sum over passes: gradients add up"
    return doing(text, f"each parameter is used {num_passes:,} times before one backward pass", **{DETACHED: name})


def _no_batch_fits(failure: Failure) -> Iterator[Change]:
    if missing := failure.missing_bytes:
        note = f"no batch fits: gradients alone need {format_bytes(missing)} more than there is"
        yield doing("fewer trained parameters (LoRA), a smaller type (bfloat16), or shards (FSDP, ZeRO)", note)


def _keep_less(failure: Failure) -> Iterator[Change]:
    """The variables that hold enough to be mentioned; outside of loading, only containers."""
    loads = failure.phase in ("startup", "resume", "other") and failure.callback is None and bool(failure.functions)
    in_step = failure.phase in STEP_PHASES and failure.callback is None
    for held in failure.census:
        is_object = held.kind in ("object", "copy") and not held.is_unused
        may_go = (held.collects and held.name != _OF_STEPS) or (loads and not held.is_read)
        if is_object and may_go and failure.is_much(held, WHEN.much_frac, of_wanted=float(in_step)):
            yield _less_in(held, loads and not held.is_read and not held.grows)


def _at_once(failure: Failure) -> Iterator[Change]:
    if failure.asks_at_once and _BUILDS_A_MODEL.isdisjoint(failure.functions):
        size = format_bytes(failure.found.requested_bytes or 0)
        read = [held.name for held in failure.census if held.is_read]
        note = f"it reads {read[0]} whole: take parts of it where they are used" if read else ""
        yield doing(f"less at once at {failure.line}: {size}", note)


def _less_in(held: Holding, loads: bool) -> Change:
    size = format_bytes(held.num_bytes)
    if loads and (held.kind == "object" or held.num_items <= 1):  # of several copies some may go
        return doing(f"use {held.name} again, or delete it before: {size}")
    if held.is_joined:
        note = "it is joined afterwards, which may take as much again"
        return doing(f"keep a running count or sum instead of {held.name}: {size}", note, **{held.name: 0})
    items = f"{held.num_items:,} entries: at most {held.num_items // 2:,}" if held.num_items > 1 else ""
    return doing(f"keep less in {held.name}: {size}", items, **{held.name: held.num_items // 2})


REMEDIES: tuple[Remedy, ...] = (
    Remedy("/dev/shm", NOTHING, _shared_memory, "no plan has /dev/shm"),
    Remedy(_PHASES, NOTHING, _pinned, "no plan has page-locked memory"),
    Remedy(_ANYWHERE, NOTHING, _needless, "planned by name where the census has found it", is_cause=True),
    Remedy(_PASSES, NOTHING, _each_pass, "the loss may be no sum"),
    Remedy(_ANYWHERE, NOTHING, _keep_less, "nobody knows what may go"),
    Remedy("library callback copy", NOTHING, _callbacks, "a plan calls no other callback"),
    Remedy(_ANYWHERE, NOTHING, _less_ahead, "no plan has workers", is_cause=True),
    Remedy(_PASSES, NUMBERS, _no_batch_fits, "another training", is_cause=True),
    Remedy(_PASSES, NOTHING, smaller_batches, PLANNED, is_ladder=True, reduces=ACTIVATIONS),
    Remedy(_PASSES, NOTHING, _attention, PLANNED, reduces=ACTIVATIONS),
    Remedy("data", NOTHING, _fewer_rows, "no plan has the data's own memory", is_ladder=True, reduces=("the batch",)),
    Remedy("startup data forward evaluate generate other", NOTHING, _at_once, "a plan runs the line as it is"),
    Remedy("evaluate", NOTHING, _evaluation_batches, PLANNED, is_ladder=True),
    Remedy("evaluate", NOTHING, _evaluation_keeps, PLANNED, of_plan="results"),
    Remedy("generate generating", NOTHING, _generation, "how much is generated is not known"),
    Remedy("startup", NOTHING, _data_in_a_file, "a plan begins after it"),
    Remedy("forward backward optimizer evaluate", NOTHING, _fragments, "a plan has no fragments"),
    Remedy(_ANYWHERE, SPEED, _fewer_workers, "no plan has workers"),
    Remedy(_PASSES, SPEED, _checkpointing, PLANNED, reduces=ACTIVATIONS),
    Remedy("evaluate", NOTHING, _fewer_predictions, PLANNED, of_plan="results"),
    Remedy(f"{_PASSES} optimizer", NUMBERS, _optimizers, PLANNED, reduces=("optimizer",)),
    Remedy(_PASSES, NUMBERS, _shorter, PLANNED, is_ladder=True, reduces=ACTIVATIONS),
    Remedy(f"{_PASSES} optimizer", NUMBERS, _half_weights, PLANNED, reduces=(*TENSORS, *ACTIVATIONS)),
    Remedy("startup", NUMBERS, _half_weights, "a plan begins after it"),
    Remedy("backward optimizer", NUMBERS, _fewer_parameters, "another training", reduces=TENSORS),
    Remedy("save", NOTHING, _checkpoints, "by what was in use, or nobody knows"),
    Remedy("resume", NUMBERS, _resuming, "a plan begins after it"),
)
