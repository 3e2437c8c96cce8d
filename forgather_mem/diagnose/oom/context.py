"""The inputs of advice, as plain data: a run's settings, and its steps' memory use."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from forgather_mem.diagnose.oom.shapes.optimizer_sizes import Trained, family_of, family_of_class, states_of
from forgather_mem.engine.settings import ALLOCATOR_VARIABLES, ARGUMENTS
from forgather_mem.probes.tensors import shard_of

FREE_HEAP = "free in the C library's heap"  # what it keeps of freed memory, among what is in use
_CALLS_IT_DTYPE = 4, 56  # of transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run. JSON-able fields only.

    Attributes:
        arguments: The trainer's arguments, those of `ARGUMENTS` that it has.
        is_trainers: Whether they are a Trainer's, which the user can set.
        has_metrics: Whether evaluations compute metrics from all predictions.
        filters_logits: Whether the predictions are reduced first (`preprocess_logits_for_metrics`).
        can_checkpoint: Whether the model supports activation checkpointing.
        trained_numbers: Number of trainable parameters; here and below of what this rank holds of them.
        trained_bytes: Their size.
        largest_trained: Number of parameters in the largest tensor.
        state_bytes: Size of each kind of optimizer's state for these tensors, by `optimizer_sizes.FAMILY`.
        optimizer_bytes: Size of the state that the optimizer in use will have, by its class; None if that is not known.
        allocator_conf: The value of the first of `ALLOCATOR_VARIABLES` that is set.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_trainers: bool = True
    has_metrics: bool = False
    filters_logits: bool = False
    can_checkpoint: bool = False
    trained_numbers: int | None = None
    trained_bytes: int | None = None
    largest_trained: int | None = None
    optimizer_bytes: int | None = None
    allocator_conf: str = ""
    state_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def optim(self) -> str:
        """`TrainingArguments.optim`."""
        return str(self.arguments.get("optim") or "")

    def state_of(self, optim: str) -> int | None:
        """Bytes that this optimizer keeps for the run's tensors; None if that is not known."""
        family = family_of(optim) or ""
        if family in self.state_bytes:
            return self.state_bytes[family]
        if family == "adamw" and self.trained_bytes is not None:
            return 2 * self.trained_bytes
        return 0 if family == "none" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUse:
    """The largest micro-batch of one step, and the memory in use then.

    Attributes:
        step: The optimizer step, counted from 1.
        rows: Samples in the micro-batch on this device (the first dimension of its tensors).
        length: Tokens per sample (the second dimension), padding included; None for batches without one.
        sample: Without tokens, the sizes of one sample, as of a picture.
        phases: Bytes in use of the scarce memory, by phase ("forward", "backward", "optimizer", "evaluate", ...): the
            allocator's peak if it is read, else the use at the phase's end.
        saved_bytes: What its forward pass had allocated on the host beyond what there is between steps; None if that is
            unknown.
    """

    step: int
    rows: int
    length: int | None
    phases: Mapping[str, int]
    saved_bytes: int | None = None
    sample: tuple[int, ...] = ()

    @property
    def width(self) -> int | None:
        """Tokens of a sample, or its numbers; None if neither is known."""
        return width_of(self.length, self.sample)


def width_of(length: int | None, sample: tuple[int, ...]) -> int | None:
    """
    >>> width_of(512, ()), width_of(None, (3, 8, 8)), width_of(None, ())
    (512, 192, None)
    """
    return length if length is not None or not sample else math.prod(sample)


def settings_of(args: object, model: object = None, trainer: object = None, optimizer: object = None) -> RunSettings:
    """The settings, without references to these objects. Costs a walk over the model's parameters.

    Args:
        args: The trainer's arguments.
        model: The model being trained.
        trainer: The trainer, if linked: it knows whether metrics are computed.
        optimizer: The optimizer in use.
    """
    trained = list(_trained(model))
    states = states_of(trained) if trained else {}
    return RunSettings(
        arguments={name: _plain(getattr(args, name)) for name in ARGUMENTS if hasattr(args, name)},
        is_trainers=hasattr(args, "per_device_train_batch_size"),
        has_metrics=getattr(trainer, "compute_metrics", None) is not None,
        filters_logits=getattr(trainer, "preprocess_logits_for_metrics", None) is not None,
        can_checkpoint=bool(getattr(model, "supports_gradient_checkpointing", False)),
        trained_numbers=sum(tensor.numbers for tensor in trained) if trained else None,
        trained_bytes=sum(tensor.numbers * tensor.item_bytes for tensor in trained) if trained else None,
        largest_trained=max((tensor.numbers for tensor in trained), default=None),
        state_bytes=states,
        optimizer_bytes=states.get(family_of_class(optimizer) or ""),
        allocator_conf=next(filter(None, map(os.environ.get, ALLOCATOR_VARIABLES)), ""),
    )


def dtype_argument() -> str:
    """The name of `from_pretrained`'s argument for the type of the weights, in the loaded transformers."""
    version = getattr(sys.modules.get("transformers"), "__version__", "")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    return "torch_dtype" if numbers and numbers < _CALLS_IT_DTYPE else "dtype"


def takes_optimizer(name: str) -> bool:
    """Whether the loaded `TrainingArguments` accept this optimizer; True without transformers."""
    names = getattr(sys.modules.get("transformers.training_args"), "OptimizerNames", None)
    return names is None or any(name == known for known in names)


def _trained(model: object) -> Iterator[Trained]:
    """Each trainable tensor once."""
    seen: set[int] = set()
    for module in model.modules() if hasattr(model, "modules") else ():
        is_embedding = any(cls.__name__ == "Embedding" for cls in type(module).__mro__)
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield Trained(_shape_here(parameter), parameter.element_size(), is_embedding)


def _shape_here(parameter: Any) -> tuple[int, ...]:
    """The shape of this rank's part of a parameter (ZeRO-3, FSDP2): optimizer state exists for that part only."""
    shard = shard_of(parameter)
    if shard is None and hasattr(parameter, "to_local"):
        shard = parameter.detach().to_local()
    return tuple((parameter if shard is None else shard).shape)


def _plain(value: object) -> object:
    """A JSON-able form; an enum by its value."""
    value = getattr(value, "value", value)
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)
