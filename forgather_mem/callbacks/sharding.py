"""Are a model's parameters spread over the ranks, so that one rank alone can't run it or know its gradients?"""

from __future__ import annotations

import os
from typing import Any

import torch

# What accelerate's launcher sets, and which library it stands for.
_SWITCHES = {"ACCELERATE_USE_FSDP": "FSDP"}
# What marks one parameter as a part: (attribute, by whom).
_MARKS = (("device_mesh", "DTensor"), ("ds_status", "DeepSpeed ZeRO 3"), ("_is_flat_param", "FSDP"))


def sharded_by(model: torch.nn.Module, args: Any) -> str | None:
    """Who spread the parameters; None when this rank has them whole.

    Args:
        model: The model, wrapped or not.
        args: The trainer's arguments, or None.
    """
    if getattr(args, "fsdp", None):
        return "FSDP"
    for switch, library in _SWITCHES.items():
        if os.environ.get(switch, "").lower() in ("1", "true"):
            return library
    if any(type(module).__name__ in ("FullyShardedDataParallel", "FSDPModule") for module in model.modules()):
        return "FSDP"
    for parameter in model.parameters():
        for attribute, library in _MARKS:
            if hasattr(parameter, attribute):
                return library
    return None
