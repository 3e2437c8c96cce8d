"""A trainer with other arguments than its own: what a plan tries instead."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from forgather_mem.errors import PlanError, did_you_mean

if TYPE_CHECKING:
    from forgather_mem.planning.trainer import Trainer

ATTENTION = "attn_implementation"
_CHECKPOINTING = ("gradient_checkpointing", "activation_checkpointing")  # of transformers 4, and of 5
_OPTIMIZERS = ("adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd")


def apply_changes(trainer: Trainer, changes: Mapping[str, object]) -> None:
    """Give a trainer that has not begun other arguments; also `attn_implementation`, which is the model's.

    Raises:
        PlanError: for an argument that its TrainingArguments don't have, or a value that they don't take.
    """
    known = [field.name for field in dataclasses.fields(trainer.args)]
    for name, value in changes.items():
        if name == ATTENTION:
            trainer.model.set_attn_implementation(value)
        elif name not in known:
            raise PlanError(f"TrainingArguments have no {name!r}" + _hint(name, known))
        elif name in _CHECKPOINTING:
            for alias in _CHECKPOINTING:
                object.__setattr__(trainer.args, alias, value)
        else:
            kind = type(getattr(trainer.args, name))
            object.__setattr__(trainer.args, name, kind(value) if name == "optim" else value)
    if changes.get("bf16"):
        trainer.accelerator.native_amp = True
        trainer.accelerator.state._mixed_precision = "bf16"


def train_on_the_host(trainer: Trainer) -> None:
    """Let a trainer go on without its device, which a forked child can't use; float16 needs one, and bfloat16 does not.

    Raises:
        PlanError: where several processes train together.
    """
    arguments, accelerator = trainer.args, trainer.accelerator
    for attribute, what in (("is_deepspeed_enabled", "DeepSpeed"), ("is_fsdp_enabled", "FSDP")):
        if getattr(trainer, attribute, False):
            raise PlanError(f"{what} is not planned: plan the training of one process without it")
    if arguments.world_size > 1:
        raise PlanError(f"{arguments.world_size} processes train together: plan the training of one")
    arguments.__dict__["_setup_devices"] = accelerator.state.device = torch.device("cpu")
    arguments._n_gpu = min(1, arguments.n_gpu)
    accelerator.device_placement = False
    if accelerator.state._mixed_precision == "fp16":
        accelerator.state._mixed_precision, accelerator.scaler = "bf16", None


def step_as_on_a_device() -> None:
    """Let optimizers work on all tensors at once where they would on a device: their copies are then as large as all.

    It is set for good: for a process that plans and then ends.
    """

    def choose(parameters: list[torch.Tensor], differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
        return False, not differentiable

    for name in _OPTIMIZERS:
        module = sys.modules.get(f"torch.optim.{name}")
        if module is not None:
            module._default_to_fused_or_foreach = choose  # type: ignore[attr-defined]


def step_whatever_the_scaler_finds() -> None:
    """Let `torch.amp.GradScaler` step, for good, as if no gradient were infinite: it asks for values."""

    def step(_: object, optimizer: torch.optim.Optimizer, found: object, *args: object, **keywords: object) -> object:
        return optimizer.step(*args, **keywords)  # type: ignore[call-overload]

    torch.amp.GradScaler._maybe_opt_step = step  # type: ignore[method-assign, assignment]


def _hint(name: str, known: list[str]) -> str:
    meant = did_you_mean(name, known)
    return f"; {meant}" if meant else ""
