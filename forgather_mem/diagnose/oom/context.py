"""A run's settings as plain data: what remedies change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forgather_mem.engine.settings import ALLOCATOR_VARIABLES, ARGUMENTS, asked_of_model

if TYPE_CHECKING:
    import torch

FREE_HEAP = "gaps in the C library's heap"  # what it keeps of freed memory, among what is in use
WORKERS = "data workers"
AHEAD = "batches loaded ahead"  # by data workers, in shared memory; the training takes them later
LOADS_AHEAD = 2  # of these each worker, by torch's default
UNSEEN = "not looked into"  # where no memory was left for a census
NO_GRAPH, DETACHED = "no_grad", "detach"  # of `Change.in_script`: who holds the graph
EVALUATION = "evaluate"  # in its place: what any model computes there


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run. JSON-able fields only.

    Attributes:
        arguments: The trainer's arguments, those of `ARGUMENTS` that it has.
        is_trainers: Whether they are a Trainer's, which the user can set.
        has_metrics: Whether evaluations compute metrics from all predictions.
        filters_logits: Whether the predictions are reduced first (`preprocess_logits_for_metrics`).
        can_checkpoint: Whether the model supports activation checkpointing.
        attention: The model's `attn_implementation`; empty if it has none.
        dtype: Of its first parameter; empty if it is not known.
        returned: What each call of the model returns beside its logits, by names in its configuration; may be empty.
        allocator_conf: The value of the first of `ALLOCATOR_VARIABLES` that is set.
    """

    arguments: Mapping[str, object] = field(default_factory=dict)
    is_trainers: bool = True
    has_metrics: bool = False
    filters_logits: bool = False
    can_checkpoint: bool = False
    attention: str = ""
    dtype: str = ""
    returned: str = ""
    allocator_conf: str = ""

    def number(self, argument: str, default: int = 1) -> int:
        """A size among the arguments; the largest where several data loaders have told theirs."""
        told = str(self.arguments.get(argument)).split(", ")
        return max((int(one) for one in told if one.isdecimal() and int(one) > 0), default=default)


def settings_of(args: object, model: object = None, trainer: object = None) -> RunSettings:
    """The settings, without references to these objects.

    Args:
        args: The trainer's arguments.
        model: The model being trained.
        trainer: The trainer, if linked: it knows whether metrics are computed.
    """
    first = next(model.parameters(), None) if hasattr(model, "parameters") else None
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return RunSettings(
        arguments={name: _plain(getattr(args, name)) for name in ARGUMENTS if hasattr(args, name)},
        is_trainers=hasattr(args, "per_device_train_batch_size"),
        has_metrics=getattr(trainer, "compute_metrics", None) is not None,
        filters_logits=getattr(trainer, "preprocess_logits_for_metrics", None) is not None,
        can_checkpoint=bool(getattr(model, "supports_gradient_checkpointing", False)),
        attention=attention if isinstance(attention, str) else "",
        dtype=str(getattr(first, "dtype", "")).removeprefix("torch."),
        returned=asked_of_model(getattr(model, "config", None)),
        allocator_conf=next(filter(None, map(os.environ.get, ALLOCATOR_VARIABLES)), ""),
    )


def trained_parameters(model: Any, optimizer: object) -> list[torch.nn.Parameter]:
    """Those of the model and of the optimizer that ask for gradients, each once."""
    groups = getattr(optimizer, "param_groups", ())
    of_both = (*getattr(model, "parameters", tuple)(), *(one for group in groups for one in group["params"]))
    return list({id(one): one for one in of_both if one.requires_grad}.values())


def _plain(value: object) -> object:
    """A JSON-able form; an enum by its value."""
    value = getattr(value, "value", value)
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)
