"""The table of remedies: what may let a training fit that has run out of memory, and what it changes about it.

A remedy is a function from the training's settings and the batch that failed to other settings, the smallest change
first. Whether it fits is not decided here: those with `is_planned` are planned by `forgather-mem run` after the
training has ended, the others, and all of them where there is no plan, are only named.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from forgather_mem.diagnose.oom.context import DETACHED, NO_GRAPH, RunSettings, takes_optimizer
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.messages import NCCL_SHM, OF_TORCH, PINNED
from forgather_mem.diagnose.oom.place import MODULE_IS_MADE
from forgather_mem.heap.census import Holding
from forgather_mem.telemetry.events import PHASES, STEP_PHASES
from forgather_mem.telemetry.report import Change
from forgather_mem.units import MIB, format_bytes

_PHASES = " ".join(PHASES)
_ANYWHERE = f"{_PHASES} callback copy generating"
_PASSES = "forward backward"
_LOADING = ("startup", "resume", "other")
_BUILDS_A_MODEL = frozenset(
    (MODULE_IS_MADE, "from_pretrained", "from_config", "_from_config", "init_weights", "_apply")
)
# What a remedy changes about the training, in the order in which remedies are told
NOTHING, SPEED, NUMBERS = range(3)
_ACTIVATIONS, _STATE = ("activations", "graph", "the batch"), ("optimizer",)
_OF_PARAMETERS = "parameters", "gradients", "optimizer"
_OF_PHASE = {"optimizer": "optimizer", "evaluate": "evaluation"}  # what a phase asks for
_CHANGES = {NOTHING: "", SPEED: "slower", NUMBERS: "changes the training"}


@dataclass(frozen=True, slots=True)
class RemedyThresholds:
    """What is worth a word, as set on the sets of benchmarks/results/ooms.md.

    Attributes:
        shortest: Tokens; shorter samples are not cut.
        most_parts: Of a step.
        much_frac: Of what is in use: a variable that is worth a word.
        to_torch_frac: Of a device, for torch, so that libraries beside it get the rest.
    """

    shortest: int = 16
    most_parts: int = 4096
    much_frac: float = 0.05
    to_torch_frac: float = 0.9


_WHEN = RemedyThresholds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a remedy is chosen by.

    Attributes:
        phase: In which memory ran out.
        settings: Of the run.
        rows, length: Of the micro-batch that failed, if known.
        on_device: Whether a device's memory ran out.
        failure: All that is known of it; None in the process that plans.
        keeps_graphs: Whether graphs of passes before the last are kept: so it would be with more, smaller batches.
    """

    phase: str
    settings: RunSettings
    rows: int | None = None
    length: int | None = None
    on_device: bool = False
    failure: Failure | None = None
    keeps_graphs: bool = False

    @property
    def place(self) -> str:
        """Of `Remedy.where`."""
        failure = self.failure
        if failure is None or (failure.callback is None and failure.found.kind != NCCL_SHM):
            return self.phase
        if failure.callback is None:
            return "/dev/shm"
        if not failure.callback.is_users:
            return "library"
        if self.phase == "generate":
            return "generating"
        return "callback" if failure.callback.copied_bytes is None else "copy"


class Remedy(NamedTuple):
    """One row.

    Attributes:
        where: Phases, or "callback" (the user's), "copy" or "generating" (one that does that), "library" (a library's
            callback), "/dev/shm".
        alters: What it changes about the training.
        of: What it offers in a case, the smallest change first; nothing where it does not apply.
        is_planned: Whether a plan can tell how much it saves.
        is_ladder: Whether each saves more than the one before, so that one of them is told.
        is_cause: Whether it says why memory ran out: then no ladder is told beside it.
        reduces: The parts of what is in use that it makes smaller; nothing where that can't be said.
    """

    where: str
    alters: int
    of: Callable[[Case], Iterable[Change]]
    is_planned: bool = False
    is_ladder: bool = False
    is_cause: bool = False
    reduces: tuple[str, ...] = ()

    def offers(self, case: Case) -> list[Change]:
        """The same with what it changes in the notes, without what is set already."""
        found, now = self.of(case) if case.place in self.where.split() else (), case.settings.arguments
        return [
            replace(change, note="; ".join(filter(None, (_CHANGES[self.alters], change.note))) or None)
            for change in found
            if not change.set or any(str(now.get(name)) != str(value) for name, value in change.set.items())
        ]

    def is_useless(self, failure: Failure | None) -> bool:
        """Whether all of what it makes smaller is less than what was missing, as far as the census tells."""
        if failure is None or not self.reduces or "parameters" not in failure.in_use:
            return False
        wanted, free = failure.requested_bytes or 0, failure.free_bytes or 0
        missing = 1 if failure.freed_bytes else max(1, wanted - free)  # some of what is free now was not so then
        missing = max(missing, int(_WHEN.much_frac * (failure.used_bytes or 0)))  # a later allocation may fail, too
        known = sum(size for part, size in failure.in_use.items() if part.startswith(self.reduces))
        return known + wanted * (_OF_PHASE.get(failure.phase, "activations") in self.reduces) < missing


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
        if not (has_cause and remedy.is_ladder) and not remedy.is_useless(case.failure):
            offered = remedy.offers(case)
            # Nobody knows how far down it has to go: the second rung
            for change in offered[:2][-1:] if remedy.is_ladder else offered:
                found.setdefault(change.text, change)
    return list(found.values())


def written(values: Mapping[str, object]) -> str:
    """Arguments as a user would write them.

    >>> written({"optim": "sgd", "save_only_model": True})
    "optim='sgd', save_only_model=True"
    """
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def smaller_batches(case: Case) -> list[Change]:
    """The same step in smaller micro-batches, the largest first."""
    settings = case.settings
    if case.keeps_graphs:
        return []
    rows = settings.number("per_device_train_batch_size", case.rows or 1)
    accumulation = settings.number("gradient_accumulation_steps")
    whole = rows * accumulation
    parts = (part for part in range(accumulation + 1, min(whole, _WHEN.most_parts) + 1) if whole % part == 0)
    sizes = [size for size in (whole // part for part in parts) if rows % size == 0 or rows & (rows - 1)]
    note = "the same step in smaller parts"
    return [
        _setting(note, per_device_train_batch_size=size, gradient_accumulation_steps=whole // size) for size in sizes
    ]


def _setting(note: str = "", **values: object) -> Change:
    return Change(text=written(values), set=values, note=note)


def _doing(text: str, note: str = "", **in_script: object) -> Change:
    return Change(text=text, in_script=in_script, note=note)


def _checkpointing(case: Case) -> Iterator[Change]:
    name, settings = checkpointing_name(case.settings), case.settings
    if settings.can_checkpoint:
        yield _setting("keeps fewer activations", **{name: True})


def checkpointing_name(settings: RunSettings) -> str:
    """The name of gradient checkpointing in the run's version of transformers."""
    newer = "activation_checkpointing"
    return newer if newer in settings.arguments else "gradient_checkpointing"


def _optimizers(case: Case) -> Iterator[Change]:
    now = str(case.settings.arguments.get("optim") or "")
    if not now and case.phase != "optimizer":  # of a loop of the user's: nobody knows which it is
        return
    if case.on_device and now == "adamw_torch":
        yield _setting("no copies of all tensors at once", optim="adamw_torch_fused")
    if now and case.on_device and importlib.util.find_spec("bitsandbytes"):
        yield _setting("8-bit states; embeddings and small tensors in float32", optim="adamw_bnb_8bit")
    if now and importlib.util.find_spec("torchao") and takes_optimizer("adamw_torch_8bit"):
        yield _setting("8-bit states, of torchao", optim="adamw_torch_8bit")
    if now not in ("adafactor", "sgd"):
        yield _setting("another optimizer: rows and columns instead of states", optim="adafactor")
    yield _setting("another optimizer, without state: it needs another learning rate", optim="sgd")


def _shorter(case: Case) -> Iterator[Change]:
    length = case.length or 0
    while length > _WHEN.shortest:
        length = length * 3 // 4
        yield _doing(f"max length {length:,}", "cuts longer samples", max_length=length)


def _evaluation_batches(case: Case) -> Iterator[Change]:
    rows = case.settings.number("per_device_eval_batch_size", case.rows or 1)
    while rows > 1:
        rows //= 2
        yield _setting(per_device_eval_batch_size=rows)


def _keeps_predictions(case: Case) -> bool:
    arguments = case.settings.arguments
    is_reduced = arguments.get("prediction_loss_only") or arguments.get("batch_eval_metrics")
    predicts = case.failure is not None and "predict" in case.failure.functions
    return bool((case.settings.has_metrics or predicts) and not is_reduced)


def _evaluation_keeps(case: Case) -> Iterator[Change]:
    if _keeps_predictions(case) and case.on_device and not case.settings.arguments.get("eval_accumulation_steps"):
        yield _setting("predictions go to the host after each batch", eval_accumulation_steps=1)


def _fewer_predictions(case: Case) -> Iterator[Change]:
    if _keeps_predictions(case) and not case.settings.filters_logits:
        yield _doing(
            "preprocess_logits_for_metrics=lambda logits, labels: "
            "(logits[0] if isinstance(logits, tuple) else logits).argmax(-1)",
            "compute_metrics is given token ids",
            preprocess_logits_for_metrics="argmax",
        )
    if _keeps_predictions(case):
        yield _setting("gives the loss only, no metrics", prediction_loss_only=True)


def _fewer_workers(case: Case) -> Iterator[Change]:
    workers = case.settings.number("dataloader_num_workers", 0)
    if workers:
        yield _setting("samples are made in this process", dataloader_num_workers=0)
        if case.settings.number("dataloader_prefetch_factor", 2) > 1:
            yield _setting("half the batches in flight", dataloader_prefetch_factor=1)


def _generation(case: Case) -> Iterator[Change]:
    settings = case.settings
    if settings.arguments.get("predict_with_generate"):
        yield _setting(per_device_eval_batch_size=1)
    else:
        yield _doing("generate from one prompt at a time, then from more", rows=1)
    if settings.number("generation_num_beams") > 1:
        yield _setting("one sequence for each sample", generation_num_beams=1)
    most = settings.number("generation_max_length", 0)
    if most:
        yield _setting("keys and values of half as many tokens", generation_max_length=most // 2)
    else:
        yield _doing("half as many max_new_tokens")


def _half_weights(case: Case) -> Iterator[Change]:
    how = "model.to(torch.bfloat16)" + ("" if case.settings.is_trainers else ", and inputs of floats")
    if case.place == "startup":
        how = "torch.set_default_dtype(torch.bfloat16) before the model is made"
    if case.settings.dtype in ("", "float32"):
        yield _doing(f"the weights in bfloat16: {how}", "less exact, half the bytes", dtype="bfloat16")


def _fewer_parameters(case: Case) -> Iterator[Change]:
    yield _doing("train fewer parameters (LoRA), or shard them over several devices (FSDP, DeepSpeed ZeRO)")


def _checkpoints(case: Case) -> Iterator[Change]:
    if not case.settings.is_trainers:
        yield _doing("torch.save to a file, of the model, then of the optimizer, without a copy of them in memory")
        return
    functions = case.failure.functions if case.failure is not None else ()
    if "_save_optimizer_and_scheduler" in functions:  # else it was the model itself
        # The model is saved by then, and what was in use is all there is without the rest
        predicted = case.failure.used_bytes if case.failure is not None and not case.failure.freed_bytes else None
        alone = _setting("a resumed run starts without optimizer state", save_only_model=True)
        yield replace(alone, predicted_bytes=predicted)
    yield _setting("no checkpoint before its end: save the model after it", save_strategy="no")


def _resuming(case: Case) -> Iterator[Change]:
    if not case.settings.is_trainers:
        yield _doing("torch.load(..., mmap=True), and delete what it returns after load_state_dict")
        return
    yield _doing(
        "start from the checkpoint's weights: from_pretrained(CHECKPOINT), train() without resuming",
        "step and optimizer start from scratch",
        resume_from_checkpoint=False,
    )


def _callbacks(case: Case) -> Iterator[Change]:
    assert case.failure is not None
    assert case.failure.callback is not None
    callback = case.failure.callback
    name = f"{callback.callback} ({callback.line})"
    if not callback.is_users:
        yield _doing(
            f"the training without {callback.callback.partition('.')[0]}", "a smaller batch changes nothing of it"
        )
    elif callback.copied_bytes is None:
        yield _doing(f"less memory in {name}", "the training itself did not ask for it")
    else:
        yield _doing(f"torch.save to a file in {name}, not a copy", "writing takes no second copy in memory")


def _needless(case: Case) -> Iterator[Change]:
    """What the census has found that no training needs: graphs without a backward pass, what no code reads again."""
    failure = case.failure
    is_evaluation = case.phase in ("evaluate", "generate")
    for held in failure.census if failure is not None else ():
        size = format_bytes(held.num_bytes)
        if not _is_much(held, failure, of_wanted=1 / 2):
            continue
        if held.kind == "untrained":
            note = f"no optimizer has its parameters, but {size} are kept for a backward pass through it"
            yield _doing(f"torch.no_grad() around what {held.name} computes", note, **{NO_GRAPH: held.name})
        elif is_evaluation and held.kind in ("activations", "earlier"):
            of = f", and {held.name} keeps" if held.name else ", but it keeps"
            yield _doing("torch.no_grad() around the evaluation", f"no backward pass follows{of} {size}")
        elif held.kind == "earlier":
            note = f"{size} are {held.part}, until a backward pass goes through them or they are detached"
            text = f"detach() what {held.name} keeps, or backward() after each pass"
            yield _doing(text, note, **{DETACHED: held.name})
        elif held.is_unused:
            yield _doing(f"delete {held.name} when it is no longer read", f"{size} that nothing reads again")
        elif held.kind == "copy" and held.num_items > 1:
            yield _less_in(held, loads=False)


def _each_pass(case: Case) -> Iterator[Change]:
    for held in case.failure.census if case.failure is not None else ():
        if held.kind == "activations" and held.num_passes > 1 and held.name:
            text = f"backward() after each pass, if {held.name} is a sum over passes: gradients add up"
            yield _doing(text, f"each parameter is used {held.num_passes:,} times before one backward pass")


def _no_batch_fits(case: Case) -> Iterator[Change]:
    missing = case.failure.missing_bytes if case.failure is not None else 0
    if missing:
        note = f"no batch fits: gradients and optimizer need {format_bytes(missing)} more than there is"
        yield _doing("fewer trained parameters (LoRA), a smaller type (bfloat16), or shards (FSDP, ZeRO)", note)


def _keep_less(case: Case) -> Iterator[Change]:
    """The variables that hold enough to be mentioned; outside of loading, only containers."""
    failure = case.failure
    if failure is None:
        return
    loads = case.phase in _LOADING and failure.callback is None
    in_step = case.phase in STEP_PHASES and failure.callback is None
    for held in failure.census:
        is_object = held.kind in ("object", "copy") and not held.is_unused and (loads or held.collects)
        if is_object and _is_much(held, failure, of_wanted=float(in_step)):
            yield _less_in(held, loads)


def _at_once(case: Case) -> Iterator[Change]:
    if case.failure is not None and case.failure.asks_at_once:
        size = format_bytes(case.failure.requested_bytes or 0)
        yield _doing(f"less at once at {case.failure.line}: {size}", "as in parts of its rows, one after the other")


def _is_much(held: Holding, failure: Failure | None, of_wanted: float) -> bool:
    used, wanted = (failure.used_bytes or 0, failure.requested_bytes or 0) if failure is not None else (0, 0)
    return held.num_bytes >= max(MIB, _WHEN.much_frac * used, of_wanted * wanted)


def _less_in(held: Holding, loads: bool) -> Change:
    size = format_bytes(held.num_bytes)
    items = f"{held.num_items:,} entries: at most {held.num_items // 2:,}" if held.num_items > 1 else ""
    text = f"use {held.name} again, or delete it before" if loads else f"keep less in {held.name}"
    return _doing(f"{text}: {size}", items)


def _pinned(case: Case) -> Iterator[Change]:
    failure = case.failure
    if failure is not None and (failure.found.kind == PINNED or "pin_memory" in failure.functions):
        yield _setting("no second, page-locked copy", dataloader_pin_memory=False)


def _fragments(case: Case) -> Iterator[Change]:
    """Where torch's allocator keeps enough that it, or a library beside it, can't use."""
    failure = case.failure
    unused = failure.reserved_unused_bytes if failure is not None and case.on_device else None
    if failure is None or unused is None or unused < max(failure.requested_bytes or 0, MIB):
        return
    if not failure.found.kind.endswith(OF_TORCH):
        text = f"torch.cuda.set_per_process_memory_fraction({_WHEN.to_torch_frac}) before the training"
        yield _doing(text, f"{format_bytes(unused)} are kept by torch", memory_fraction=_WHEN.to_torch_frac)
    elif "expandable_segments:True" not in case.settings.allocator_conf:
        name = "PYTORCH_HIP_ALLOC_CONF" if failure.found.kind.startswith("HIP") else "PYTORCH_CUDA_ALLOC_CONF"
        value = ",".join(filter(None, (case.settings.allocator_conf, "expandable_segments:True")))
        yield _doing(f"{name}={value}", f"{format_bytes(unused)} are free, in small pieces", **{name: value})


def _shared_memory(case: Case) -> Iterator[Change]:
    yield _doing("a larger /dev/shm: docker run --shm-size=1g", "docker gives 64 MiB unless told otherwise")
    yield _doing("NCCL_SHM_DISABLE=1", "GPUs without a direct link then use the network", NCCL_SHM_DISABLE="1")


def _attention(case: Case) -> Iterator[Change]:
    if case.settings.attention == "eager":
        yield _doing("attn_implementation='sdpa'", "keeps no weights of attention", attn_implementation="sdpa")


def _data_in_a_file(case: Case) -> Iterator[Change]:
    if case.failure is None or _BUILDS_A_MODEL.isdisjoint(case.failure.functions):
        yield _doing("map the data instead of loading it: datasets.load_from_disk, numpy.load(mmap_mode='r')")


REMEDIES: tuple[Remedy, ...] = (
    Remedy("/dev/shm", NOTHING, _shared_memory),
    Remedy(_PHASES, NOTHING, _pinned),
    Remedy(_ANYWHERE, NOTHING, _needless, is_cause=True),
    Remedy(_PASSES, NOTHING, _each_pass),
    Remedy(_ANYWHERE, NOTHING, _keep_less),
    Remedy("library callback copy", NOTHING, _callbacks),
    Remedy(_PASSES, NUMBERS, _no_batch_fits, is_cause=True),
    Remedy(f"{_PASSES} other", NOTHING, smaller_batches, is_planned=True, is_ladder=True, reduces=_ACTIVATIONS),
    Remedy(_PASSES, NOTHING, _attention, is_planned=True, reduces=_ACTIVATIONS),
    Remedy("data", NOTHING, smaller_batches, is_ladder=True),
    Remedy("data evaluate generate other", NOTHING, _at_once),
    Remedy("evaluate", NOTHING, _evaluation_batches, is_planned=True, is_ladder=True),
    Remedy("evaluate", NOTHING, _evaluation_keeps, is_planned=True),
    Remedy("generate generating", NOTHING, _generation),
    Remedy("startup", NOTHING, _data_in_a_file),
    Remedy("forward backward optimizer evaluate", NOTHING, _fragments),
    Remedy("data", SPEED, _fewer_workers),
    Remedy(_PASSES, SPEED, _checkpointing, is_planned=True, reduces=_ACTIVATIONS),
    Remedy("evaluate", NUMBERS, _fewer_predictions, is_planned=True),
    Remedy(f"{_PASSES} optimizer", NUMBERS, _optimizers, is_planned=True, reduces=_STATE),
    Remedy(_PASSES, NUMBERS, _shorter, is_planned=True, is_ladder=True, reduces=_ACTIVATIONS),
    Remedy(f"{_PASSES} optimizer", NUMBERS, _half_weights, is_planned=True, reduces=(*_OF_PARAMETERS, *_ACTIVATIONS)),
    Remedy("startup", NUMBERS, _half_weights),
    Remedy("backward optimizer", NUMBERS, _fewer_parameters, reduces=_OF_PARAMETERS),
    Remedy("save", NUMBERS, _checkpoints),
    Remedy("resume", NUMBERS, _resuming),
)
