"""The settings of a training that decide what memory it takes, as texts: what `compare` can name as a cause.

Nothing else is read: of arguments, configuration and environment only the names below, so no token or path is kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Protocol

# Trainer's arguments; advice after an out-of-memory error reads the same.
ARGUMENTS = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps",
    "accumulate_grad_batches", "auto_find_batch_size",
    "gradient_checkpointing", "activation_checkpointing", "optim", "bf16", "fp16", "tf32", "torch_compile",
    "torch_compile_mode", "fsdp", "max_length", "max_seq_length", "group_by_length", "max_grad_norm",
    "label_smoothing_factor",
    "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory", "dataloader_persistent_workers",
    "eval_strategy", "eval_steps", "eval_accumulation_steps", "prediction_loss_only", "batch_eval_metrics",
    "predict_with_generate", "generation_max_length", "generation_num_beams", "save_strategy", "save_steps",
    "save_only_model", "save_safetensors", "load_best_model_at_end", "torch_empty_cache_steps",
)  # fmt: skip
CONFIGURATION = (
    "attn_implementation", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "n_embd", "n_layer", "n_head", "d_model", "d_ff", "num_layers", "image_size", "use_cache",
)  # fmt: skip
# Any of them configures torch's allocator on a device.
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
ENVIRONMENT = (
    *ALLOCATOR_VARIABLES, "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_CONF",
    "PYTHONMALLOC", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
)  # fmt: skip
_MOST_TEXT = 200


class SupportsNumel(Protocol):
    """A parameter."""

    def numel(self) -> int: ...


def settings_of_training(args: object, model: object, optimizer: object) -> dict[str, str]:
    """The settings by "arguments.optim", "model.dtype", "optimizer", "environment.OMP_NUM_THREADS".

    What a trainer does not have is left out, and so is what is None. Costs a walk over the model's parameters.

    Args:
        args: The trainer's arguments.
        model, optimizer: None where they are not known.
    """
    told: dict[str, object] = {f"arguments.{name}": _plain(getattr(args, name, None)) for name in ARGUMENTS}
    if model is not None:
        told |= {f"model.{name}": value for name, value in _of_model(model)}
    if optimizer is not None:
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's has torch's inside
        told["optimizer"] = type(inner).__name__
        groups = getattr(inner, "param_groups", None) or [{}]
        told |= {f"optimizer.{name}": groups[0].get(name) for name in ("fused", "foreach", "momentum", "amsgrad")}
    told |= {f"environment.{name}": os.environ.get(name) for name in ENVIRONMENT}
    torch = sys.modules.get("torch")
    if torch is not None:
        told["threads"] = torch.get_num_threads()
    return {name: str(value)[:_MOST_TEXT] for name, value in told.items() if value is not None}


def _of_model(model: object) -> Iterator[tuple[str, object]]:
    yield "class", type(model).__name__
    config = getattr(model, "config", None)
    for name in CONFIGURATION:
        value = getattr(config, f"_{name}", None) if name == "attn_implementation" else getattr(config, name, None)
        yield name, value if isinstance(value, str | int) else None
    parameters = list(model.parameters()) if hasattr(model, "parameters") else []
    if parameters:
        yield "dtype", ", ".join(sorted({str(one.dtype).removeprefix("torch.") for one in parameters}))
        yield "parameters", sum(map(_numbers, parameters))
        yield "trained_parameters", sum(_numbers(one) for one in parameters if one.requires_grad)
    modules = model.modules() if hasattr(model, "modules") else ()
    # transformers' own property warns
    yield "gradient_checkpointing", any(vars(one).get("gradient_checkpointing") for one in modules) or None


def _numbers(parameter: SupportsNumel) -> int:
    return int(getattr(parameter, "ds_numel", 0) or parameter.numel())  # DeepSpeed leaves a placeholder


def _plain(value: object) -> object:
    """An enum by its value; nothing for what is empty."""
    value = getattr(value, "value", value)
    return value if isinstance(value, bool | int | float | str) and value != "" else None
