"""Detects whether a model's parameters are sharded, so that one rank alone can't run it or know its gradients."""

from __future__ import annotations

import os

import torch

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
