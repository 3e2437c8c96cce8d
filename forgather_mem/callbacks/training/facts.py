"""Facts about a training before its first step: model, settings, data, devices."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from forgather_mem.probes.tensors import tensors_in
from forgather_mem.system.allocator import devices
from forgather_mem.telemetry.records import Moment
from forgather_mem.telemetry.redaction import redacted_value
from forgather_mem.units import format_bytes

# Shown on every page and compared across runs: what people change from run to run.
SETTINGS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "optim", "weight_decay",
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
    "max_grad_norm", "bf16", "fp16", "gradient_checkpointing", "seed",
)  # fmt: skip
Facts = dict[str, str]


def training_facts(moment: Moment) -> dict[str, Facts]:
    """Sections of named facts, each a short text; what a trainer does not provide is left out."""
    model, objects = moment.objects.get("model"), moment.objects
    facts: dict[str, Facts] = {}
    if isinstance(model, torch.nn.Module):
        facts["model"] = _model(model)
        facts["memory"] = _memory(model, objects.get("optimizer"))
    facts["training"] = _training(moment)
    facts["data"] = _data("train", objects.get("train_dataloader")) | _data("eval", objects.get("eval_dataloader"))
    facts["devices"] = _devices(model, moment.run.world_size)
    return {section: found for section, found in facts.items() if found}


def settings(args: object) -> dict[str, str | int | float | bool]:
    """The arguments in `SETTINGS` that the trainer has, as plain values."""
    found: dict[str, str | int | float | bool] = {}
    for name in SETTINGS:
        value = getattr(args, name, None)
        value = getattr(value, "value", value)  # of an enum
        if isinstance(value, str | int | float):
            found[name] = value
    return found


def arguments(args: object) -> dict[str, object]:
    """All of the trainer's arguments, without what is secret; transformers' `to_dict` blanks some tokens only."""
    told = args.to_dict() if hasattr(args, "to_dict") else vars(args) if args is not None else {}
    return {name: redacted_value(value, name) for name, value in told.items() if not name.startswith("_")}


def format_count(count: int) -> str:
    """A number of parameters or rows in the usual short form.

    >>> format_count(999), format_count(12_345), format_count(7_250_000_000)
    ('999', '12.3 k', '7.25 G')
    """
    for factor, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return str(count)


def _model(model: torch.nn.Module) -> Facts:
    trained, frozen = Counter[str](), Counter[str]()
    for parameter in model.parameters():
        count = getattr(parameter, "ds_numel", parameter.numel())  # DeepSpeed leaves an empty tensor behind
        (trained if parameter.requires_grad else frozen)[str(parameter.dtype).removeprefix("torch.")] += count
    total = trained + frozen
    return {
        "class": type(model).__name__,
        "parameters": f"{total.total():,} ({format_count(total.total())})",
        "trainable": f"{trained.total():,}" + _by_dtype(trained),
        "frozen": f"{frozen.total():,}" + _by_dtype(frozen),
    }


def _by_dtype(counts: Counter[str]) -> str:
    return f" ({', '.join(f'{dtype} {count:,}' for dtype, count in counts.most_common())})" if counts else ""


def _memory(model: torch.nn.Module, optimizer: object) -> Facts:
    minimum = estimate_minimum(model, optimizer)
    known = minimum.optimizer_bytes is not None
    return {
        "parameters": format_bytes(minimum.parameters_bytes),
        "gradients": format_bytes(minimum.gradients_bytes),
        "optimizer": format_bytes(minimum.optimizer_bytes or 0) if known else "not known before the first step",
        "at least": format_bytes(minimum.total_bytes) + ", plus activations",
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
    if getattr(state, "global_step", 0):
        facts["resumed at step"] = f"{state.global_step:,}"
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
    elif loader is not None:
        facts[f"{name} rows"] = "a stream of unknown length"
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
    facts: Facts = {"processes": str(world_size)}
    if isinstance(model, torch.nn.Module):
        places = Counter(str(parameter.device) for parameter in model.parameters())
        facts["model is on"] = ", ".join(places)
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


# Attributes that mark a parameter as sharded, with the library that sets them.
_MARKS = (("device_mesh", "DTensor"), ("ds_status", "DeepSpeed ZeRO 3"), ("_is_flat_param", "FSDP"))


def sharded_by(model: torch.nn.Module, args: object) -> str | None:
    """What sharded the parameters; None if this rank has them whole.

    Args:
        model: The model, wrapped or not.
        args: The trainer's arguments, or None.
    """
    # The variable is set by accelerate's launcher
    if getattr(args, "fsdp", None) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true"):
        return "FSDP"
    if any(type(module).__name__ in ("FullyShardedDataParallel", "FSDPModule") for module in model.modules()):
        return "FSDP"
    for parameter in model.parameters():
        for attribute, library in _MARKS:
            if hasattr(parameter, attribute):
                return library
    return None


# Exceptions that an optimizer's step may raise on tensors without data.
_CANT_STEP = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, KeyError, AssertionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumMemory:
    """Bytes on this process's devices that a training can't do without; activations come on top.

    Attributes:
        parameters_bytes: Parameters and buffers, shared ones counted once; of sharded ones this rank's part.
        gradients_bytes: One gradient per trainable parameter, in its dtype.
        optimizer_bytes: The optimizer's state after its first step; None without an optimizer, or if it can't be known
            before.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """The sum of all known parts, in bytes."""
        return self.parameters_bytes + self.gradients_bytes + (self.optimizer_bytes or 0)


def estimate_minimum(model: torch.nn.Module, optimizer: Any = None) -> MinimumMemory:
    """The minimum memory for training this model with this optimizer: exact sizes, nothing is allocated.

    If the optimizer has not stepped yet, a copy of it is stepped on meta tensors, which have shapes but no memory. If
    its step needs values (Adafactor, 8-bit states), its share is unknown before the first step. Copies of weights made
    by mixed precision during a step are not included.

    >>> model = torch.nn.Linear(1000, 100, bias=False)
    >>> estimate_minimum(model, torch.optim.SGD(model.parameters(), momentum=0.9))
    MinimumMemory(parameters_bytes=400000, gradients_bytes=400000, optimizer_bytes=400000)
    """
    parameters = list(model.parameters())
    return MinimumMemory(
        parameters_bytes=sum(map(_num_bytes, parameters)) + sum(map(_num_bytes, model.buffers())),
        gradients_bytes=sum(_num_bytes(parameter) for parameter in parameters if parameter.requires_grad),
        optimizer_bytes=None if optimizer is None else _optimizer_bytes(optimizer),
    )


def _optimizer_bytes(optimizer: Any) -> int | None:
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):  # accelerate wraps it
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        return None
    if next(tensors_in(optimizer.state), None) is None:
        optimizer = _stepped_without_memory(optimizer)
    return None if optimizer is None else sum(map(_num_bytes, tensors_in(optimizer.state)))


def _stepped_without_memory(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """A copy of the optimizer on the meta device, after its first step; None if it can't be made."""
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)  # copying would lose a subclass's attributes
    twin.__dict__.pop("step", None)  # a scheduler's wrapper would step the original
    for name in [name for name in twin.__dict__ if name.endswith("_hooks")]:
        twin.__dict__[name] = type(twin.__dict__[name])()
    twin.state = defaultdict(dict)
    one_by_one = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}
    twin.param_groups = [
        {
            **group,
            **{name: value for name, value in one_by_one.items() if name in group},
            "params": [_shape_of(parameter) for parameter in group["params"]],
        }
        for group in optimizer.param_groups
    ]
    try:
        twin.step()
    except _CANT_STEP:
        return None
    return twin


def _shape_of(parameter: torch.Tensor) -> torch.nn.Parameter:
    local = _local(parameter)
    twin = torch.nn.Parameter(torch.empty_like(local, device="meta"), requires_grad=local.requires_grad)
    if local.requires_grad:
        twin.grad = torch.empty_like(local, device="meta")
    return twin


def _num_bytes(tensor: torch.Tensor) -> int:
    local = _local(tensor)
    return local.numel() * local.element_size()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor."""
    part = getattr(tensor, "_local_tensor", None)
    return part if isinstance(part, torch.Tensor) else tensor
