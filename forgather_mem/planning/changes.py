"""A training with something else than its own: other arguments, no device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from forgather_mem.errors import PlanError, did_you_mean
from forgather_mem.planning.batches import Trainer

ATTENTION = "attn_implementation"
DTYPE = "dtype"
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")  # of transformers 5, and of 4


def apply_changes(trainer: Trainer, changes: Mapping[str, object]) -> None:
    """Give a trainer that has not begun other arguments; also `attn_implementation` and `dtype`, which are the model's.

    Raises:
        PlanError: for an argument that its TrainingArguments don't have, or a value that they don't take.
    """
    known = [field.name for field in dataclasses.fields(trainer.args)]
    for name, value in changes.items():
        if name == ATTENTION:
            if not hasattr(trainer.model, "set_attn_implementation"):
                raise PlanError("this transformers can't change attn_implementation: a newer one can")
            trainer.model.set_attn_implementation(value)
        elif name == DTYPE:
            trainer.model.to(getattr(torch, str(value)))
        elif name not in known:
            meant = did_you_mean(name, known)
            raise PlanError(f"TrainingArguments have no {name!r}" + (f"; {meant}" if meant else ""))
        elif name in CHECKPOINTING:
            for alias in CHECKPOINTING:
                object.__setattr__(trainer.args, alias, value)
        else:
            kind = type(getattr(trainer.args, name))
            object.__setattr__(trainer.args, name, kind(value) if name == "optim" else value)
    if "fsdp" in changes and hasattr(trainer.args, "_process_fsdp_args"):
        trainer.args.fsdp_plugin_args = trainer.args._process_fsdp_args()
    if changes.get("bf16"):
        trainer.accelerator.native_amp = True
        trainer.accelerator.state._mixed_precision = "bf16"


def train_on_the_host(trainer: Trainer) -> None:
    """Let a trainer go on without its device, which a forked child can't use; float16 needs one, and bfloat16 does not.

    Raises:
        PlanError: where several processes train together.
    """
    arguments, accelerator = trainer.args, trainer.accelerator
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise PlanError("DeepSpeed is not planned in a Trainer: plan the training of one process without it")
    if arguments.world_size > 1:
        raise PlanError(f"{arguments.world_size} processes train together: plan the training of one")
    arguments.__dict__["_setup_devices"] = accelerator.state.device = torch.device("cpu")
    arguments._n_gpu = min(1, arguments.n_gpu)
    accelerator.device_placement = False
    if accelerator.state._mixed_precision == "fp16":
        accelerator.state._mixed_precision, accelerator.scaler = "bf16", None
