"""What is known of a run when advice is wanted: its settings, and where memory ran out? Plain data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# Of a trainer's arguments, those that decide what memory holds.
ARGUMENTS = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "auto_find_batch_size",
    "activation_checkpointing", "gradient_checkpointing", "optim", "bf16", "fp16", "prediction_loss_only",
    "eval_accumulation_steps", "batch_eval_metrics", "predict_with_generate", "generation_num_beams",
    "generation_max_length", "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory",
    "save_only_model", "save_strategy", "save_safetensors", "max_length", "max_seq_length",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run was set to. JSON-able fields only.

    Attributes:
        arguments: The trainer's arguments, those of `ARGUMENTS` that it has.
        has_metrics: Whether evaluations compute metrics from all predictions.
        filters_logits: Whether these are made smaller first (`preprocess_logits_for_metrics`).
        can_checkpoint: Whether the model can recompute activations instead of keeping them.
        trained_numbers: How many numbers are trained.
        trained_bytes: What these take.
        largest_trained: How many of them the largest tensor has.
        adafactor_bytes: What Adafactor's state for these tensors takes.
        allocator_conf: `PYTORCH_CUDA_ALLOC_CONF` or `PYTORCH_ALLOC_CONF`.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    has_metrics: bool = False
    filters_logits: bool = False
    can_checkpoint: bool = False
    trained_numbers: int | None = None
    trained_bytes: int | None = None
    largest_trained: int | None = None
    adafactor_bytes: int | None = None
    allocator_conf: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Where memory ran out, and what was known then. What is not known is None.

    Attributes:
        where: Which memory.
        phase: One of `metrics.PHASES`.
        step: The optimizer step, counted from 1; 0 before the first.
        used_bytes: In use then, in the same measure as `StepUse.phases`.
        free_bytes: What could still be taken; `used_bytes` and this are together all that there is.
        requested_bytes: The allocation that failed.
        reserved_unused_bytes: Kept by the device's allocator and in no tensor.
        rows, length: The micro-batch that was worked on.
        parts: What was in use by category, as in `oom.in_use`.
        frames: The names of the functions on the traceback, outermost first.
        predictions: How many batches this evaluation had done.
        workers_bytes: What the data workers hold together.
        heap_free_bytes: What the C library keeps of freed host memory.
        leak: What to do about the leak that has filled memory; None when nothing leaks.
        first_optimizer_step: Whether the optimizer had no state yet.
    """

    where: Literal["host", "device"]
    phase: str
    step: int
    used_bytes: int | None = None
    free_bytes: int | None = None
    requested_bytes: int | None = None
    reserved_unused_bytes: int | None = None
    rows: int | None = None
    length: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    frames: Sequence[str] = ()
    predictions: int | None = None
    workers_bytes: int | None = None
    heap_free_bytes: int | None = None
    leak: str | None = None
    first_optimizer_step: bool = False

    @property
    def capacity_bytes(self) -> int | None:
        """All that could be used, in the measure of `StepUse.phases`."""
        return None if self.used_bytes is None or self.free_bytes is None else self.used_bytes + self.free_bytes


def settings_of(args: Any, model: Any = None, trainer: Any = None) -> Settings:
    """What these are set to; nothing of them is kept. Costs a walk over the model's parameters.

    Args:
        args: The trainer's arguments.
        model: The model that is trained.
        trainer: The trainer, where a link to it exists: it knows whether metrics are computed.
    """
    shapes = [
        (parameter.numel(), tuple(parameter.shape), parameter.numel() * parameter.element_size())
        for parameter in (model.parameters() if hasattr(model, "parameters") else ())
        if parameter.requires_grad
    ]
    return Settings(
        arguments={name: _plain(getattr(args, name)) for name in ARGUMENTS if hasattr(args, name)},
        has_metrics=getattr(trainer, "compute_metrics", None) is not None,
        filters_logits=getattr(trainer, "preprocess_logits_for_metrics", None) is not None,
        can_checkpoint=bool(getattr(model, "supports_gradient_checkpointing", False)),
        trained_numbers=sum(count for count, _, _ in shapes) if shapes else None,
        trained_bytes=sum(size for _, _, size in shapes) if shapes else None,
        largest_trained=max((count for count, _, _ in shapes), default=None),
        adafactor_bytes=sum(_adafactor_bytes(shape) for _, shape, _ in shapes) if shapes else None,
        allocator_conf=os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or "",
    )


def _plain(value: Any) -> Any:
    """JSON-able; an enumeration by its value."""
    value = getattr(value, "value", value)
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)


def _adafactor_bytes(shape: tuple[int, ...]) -> int:
    """Rows and columns of a matrix have one float each; a vector keeps one for each number."""
    if len(shape) < 2:
        return 4 * (shape[0] if shape else 1)
    outer = 1
    for size in shape[:-2]:
        outer *= size
    return 4 * outer * (shape[-2] + shape[-1])
