"""`InfoCallback`: shows, before the first step, what is about to be trained; and the facts that it shows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.errors import check_flags
from forgather_mem.system.allocator import devices
from forgather_mem.telemetry.records import NOTHING, Moment, Sample
from forgather_mem.telemetry.redaction import redacted_value
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import AtEvent
from forgather_mem.units import format_bytes

if TYPE_CHECKING:
    import torch

Facts = dict[str, str]
# Arguments that nobody has set carry no information.
_UNSET: tuple[object, ...] = (None, "", (), [], {})
_PARTS = ("model", "optimizer", "lr_scheduler", "processing_class")


class InfoCallback(RuleCallback):
    """Shows what will be trained: parameters, minimum memory, settings, data and devices; on stderr, rank 0 only.

    Args:
        verbose: Also all of the trainer's arguments that are set, the model's layers, the optimizer and the scheduler.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    Attributes:
        facts: The facts shown for the last training, by section and name.

    Raises:
        ValueError: for a `verbose` that is not true or false.
    """

    def __init__(self, verbose: bool = False, *, enabled: bool = True, strict: bool = False) -> None:
        check_flags("InfoCallback", verbose=verbose)
        self.facts: dict[str, Facts] = {}
        self._verbose = verbose
        super().__init__([Rule(AtEvent("train_begin"), [self._tell], "InfoCallback")], enabled=enabled, strict=strict)

    def _tell(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if moment.is_main:
            self.facts = training_facts(moment)
            if self._verbose:
                given = {name: value for name, value in arguments(moment.args).items() if value not in _UNSET}
                parts = {name: moment.objects.get(name) for name in _PARTS}
                self.facts["arguments"] = {name: str(value) for name, value in given.items()}
                self.facts["parts"] = {name: str(part) for name, part in parts.items() if part is not None}
            moment.run.print_line(_lines(self.facts))
        return NOTHING


def _lines(sections: Mapping[str, Facts]) -> str:
    """A block of lines for a terminal: one paragraph per section, names in one column."""
    width = max(len(name) for facts in sections.values() for name in facts if len(name) < 28)
    lines = ["forgather-mem: training starts"]
    for title, facts in sections.items():
        lines.append(f"  {title}")
        for name, value in facts.items():
            head, *more = value.splitlines() or [""]
            lines.append(f"    {name:<{width}}  {head}")
            lines += [f"    {'':<{width}}  {line}" for line in more]
    return "\n".join(lines)


# ---- facts ----

# Shown on every page and compared across runs: what people change from run to run.
SETTINGS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "optim", "weight_decay",
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
    "max_grad_norm", "bf16", "fp16", "gradient_checkpointing", "seed",
)  # fmt: skip


def training_facts(moment: Moment) -> dict[str, Facts]:
    """Sections of named facts, each a short text; what a trainer does not provide is left out."""
    import torch  # here and below: who only checks a template that names a logger waits for no torch

    model, objects = moment.objects.get("model"), moment.objects
    facts: dict[str, Facts] = {}
    if isinstance(model, torch.nn.Module):
        facts["model"] = _model(model)
        facts["memory"] = _memory(model)
    facts["training"] = _training(moment)
    facts["data"] = _data("train", objects.get("train_dataloader")) | _data("eval", objects.get("eval_dataloader"))
    facts["devices"] = _devices(model, moment.run.world_size)
    return {section: found for section, found in facts.items() if found}


def settings(args: object) -> dict[str, str | int | float | bool]:
    """The arguments in `SETTINGS` that the trainer has, as plain values."""
    given = {name: getattr(args, name, None) for name in SETTINGS}
    plain = {name: getattr(value, "value", value) for name, value in given.items()}  # of an enum its value
    return {name: value for name, value in plain.items() if isinstance(value, str | int | float)}


def arguments(args: object) -> dict[str, object]:
    """All of the trainer's arguments, without what is secret; transformers' `to_dict` blanks some tokens only."""
    told = args.to_dict() if hasattr(args, "to_dict") else vars(args) if args is not None else {}
    return {name: redacted_value(value, name) for name, value in told.items() if not name.startswith("_")}


def _model(model: torch.nn.Module) -> Facts:
    trained, frozen = Counter[str](), Counter[str]()
    for parameter in model.parameters():
        count = getattr(parameter, "ds_numel", parameter.numel())  # DeepSpeed leaves an empty tensor behind
        (trained if parameter.requires_grad else frozen)[str(parameter.dtype).removeprefix("torch.")] += count
    total = trained + frozen
    return {
        "class": type(model).__name__,
        "parameters": f"{total.total():,}",
        "trainable": f"{trained.total():,}" + _by_dtype(trained),
        "frozen": f"{frozen.total():,}" + _by_dtype(frozen),
    }


def _by_dtype(counts: Counter[str]) -> str:
    return f" ({', '.join(f'{dtype} {count:,}' for dtype, count in counts.most_common())})" if counts else ""


def _memory(model: torch.nn.Module) -> Facts:
    """What is there of it at least, in a step; what else it takes `forgather_mem.plan` tells."""
    parameters = list(model.parameters())
    return {
        "parameters": format_bytes(sum(map(_num_bytes, [*parameters, *model.buffers()]))),
        "gradients": format_bytes(sum(_num_bytes(parameter) for parameter in parameters if parameter.requires_grad)),
    }


def _training(moment: Moment) -> Facts:
    args, state = moment.args, moment.state
    facts = {name: str(value) for name, value in settings(args).items()}
    if getattr(state, "max_steps", 0):
        facts["max_steps"] = f"{state.max_steps:,}"
    per_device = getattr(state, "train_batch_size", None) or getattr(args, "per_device_train_batch_size", None)
    if per_device:
        accumulated = getattr(args, "gradient_accumulation_steps", None) or 1
        total = per_device * accumulated * moment.run.world_size
        facts["rows a step"] = f"{total:,} ({per_device} x {accumulated} micro-batches x {moment.run.world_size} ranks)"
    optimizer = moment.objects.get("optimizer")
    optimizer = getattr(optimizer, "optimizer", optimizer)
    if optimizer is not None:
        facts["optimizer"] = type(optimizer).__name__
    return facts


def _data(name: str, loader: object) -> Facts:
    facts = {}
    rows, batches = num_items(getattr(loader, "dataset", None)), num_items(loader)
    if rows is not None:
        facts[f"{name} rows"] = f"{rows:,}"
    if batches is not None:
        facts[f"{name} batches"] = f"{batches:,}"
    if loader is not None:
        facts[f"{name} workers"] = str(getattr(loader, "num_workers", 0))
    return facts


def num_items(sized: Any) -> int | None:
    """How many items it has; None for a stream."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _devices(model: object, world_size: int) -> Facts:
    import torch

    facts: Facts = {"processes": str(world_size)}
    if isinstance(model, torch.nn.Module):
        facts["model is on"] = ", ".join(Counter(str(parameter.device) for parameter in model.parameters()))
    for device in devices():
        facts[device.label] = f"{device.name}, {format_bytes(device.total_bytes)}"
    facts["processors"] = f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads"
    return facts


def markdown(sections: Mapping[str, Mapping[str, str]]) -> str:
    """The sections as Markdown tables; multi-line texts as blocks below."""
    parts = []
    for title, facts in sections.items():
        rows = [f"| {name} | {_cell(value)} |" for name, value in facts.items() if "\n" not in value]
        parts.append("\n".join([f"### {title}", "", "| | |", "|---|---|", *rows] if rows else [f"### {title}"]))
        parts += [f"#### {name}\n\n{verbatim(value)}" for name, value in facts.items() if "\n" in value]
    return "\n\n".join(parts)


def _cell(value: str) -> str:
    return value.replace("\\", "\\\\").replace("|", "\\|")


def verbatim(text: str) -> str:
    """Indented, so that nothing in it is interpreted as Markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines())


# Attributes of a parameter that is sharded: a DTensor's, DeepSpeed's in ZeRO 3, FSDP's.
_MARKS = ("device_mesh", "ds_status", "_is_flat_param")


def is_sharded(model: torch.nn.Module, args: object) -> bool:
    """Whether the parameters are spread over the ranks, so that this one does not have them whole.

    Args:
        model: The model, wrapped or not.
        args: The trainer's arguments, or None.
    """
    # The variable is set by accelerate's launcher
    if getattr(args, "fsdp", None) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true"):
        return True
    is_wrapped = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    return is_wrapped or any(hasattr(parameter, mark) for parameter in model.parameters() for mark in _MARKS)


def _num_bytes(tensor: torch.Tensor) -> int:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.numel() * local.element_size()
