"""The settings of a training that decide what memory it takes, as texts: what `compare` can name as a cause.

Nothing else is read: of arguments, configuration and environment only the names below, so no token or path is kept.
Where a setting can be made in many ways, what came of it is read: the types that a forward pass has computed with, the
loader that feeds it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from forgather_mem.heap.autograd import operations_of
from forgather_mem.probes.live_objects import near_objects
from forgather_mem.probes.tensors import StorageKey, storages_in, tensors_in

if TYPE_CHECKING:
    import torch

    from forgather_mem.engine.phases import PhaseStack

_RETURNED = "return_dict_in_generate", "output_scores", "output_logits", "output_hidden_states", "output_attentions"
EACH_PROMPT = "num_beams", "num_return_sequences"  # by which a generation has each prompt several times
OF_GENERATE = (*EACH_PROMPT, "max_new_tokens")
PASSES_TO_SEE = 8  # of which one has a graph, or none will have
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
_LOADER = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
_MOST_TEXT = 200
_MOST_NODES = 20_000  # of a graph
_ATTENTION = "Attention"  # in the names of all kernels of scaled dot products


def see_forwards(phases: PhaseStack, tell: Callable[[dict[str, str]], object], left: int = PASSES_TO_SEE) -> None:
    """Look at what the next forward passes return, until one has a graph, whose settings are told."""

    def see(outputs: object) -> None:
        phases.on_output = None
        settings = settings_of_forward(outputs)
        if settings:
            tell(settings)
        elif left > 1:
            see_forwards(phases, tell, left - 1)

    phases.on_output = see


def settings_of_step(args: object, objects: Mapping[str, object], *, is_observed: bool) -> dict[str, str]:
    """What is known at the end of a first step; who observes a loop looks for other models itself."""
    model, optimizer, loader = map(objects.get, ("model", "optimizer", "train_dataloader"))
    settings = settings_of_training(args, model, optimizer) | settings_of_loaders([loader])
    if model is not None and not is_observed:
        near = near_objects((sys.modules["torch"].nn.Module,))
        settings |= {} if near is None else settings_of_others(model, optimizer, near)
    return settings


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
        told["optimizer"] = _classes(getattr(inner, "all_of_loop", [inner]))
        groups = getattr(inner, "param_groups", None) or [{}]
        told |= {f"optimizer.{name}": groups[0].get(name) for name in ("fused", "foreach", "momentum", "amsgrad")}
    told |= {f"environment.{name}": os.environ.get(name) for name in ENVIRONMENT}
    torch = sys.modules.get("torch")
    if torch is not None:
        told["threads"] = torch.get_num_threads()
    told["collector"] = ", ".join(map(str, gc.get_threshold())) if gc.isenabled() else "off"
    return _texts(told)


def settings_of_loaders(loaders: Iterable[object]) -> dict[str, str]:
    """Those of torch's data loaders, or of their iterators; of several loaders all values.

    >>> settings_of_loaders([])
    {}
    """
    found: dict[str, set[str]] = {}
    for loader in loaders:
        for name in _LOADER:
            value = getattr(loader, name, getattr(loader, f"_{name}", None))  # the latter is an iterator's
            if isinstance(value, int):
                found.setdefault(f"loader.{name}", set()).add(str(value))
    return _texts({name: ", ".join(sorted(values)) for name, values in found.items()})


def settings_of_others(model: object, optimizer: object, modules: Sequence[torch.nn.Module]) -> dict[str, str]:
    """The models beside the one that is trained, by their classes, and the bytes of their parameters.

    Args:
        model, optimizer: What they train is none of these.
        modules: Those that are near; what is in them need not be among them.
    """
    known = [one for one in modules if isinstance(vars(one).get("_modules"), dict)]  # else it is just being made
    inner = {id(part) for one in known for part in one.modules() if part is not one}
    groups = getattr(optimizer, "param_groups", None) or []
    trained = storages_in([model, [group.get("params") for group in groups]])
    found: dict[StorageKey, int] = {}
    names: Counter[str] = Counter()
    for root in (one for one in known if id(one) not in inner):
        own = {key: size for key, size in storages_in(list(root.parameters())).items() if key not in trained}
        names[type(root).__name__] += bool(own)
        found |= own
    models = [f"{number} {name}" for name, number in sorted(names.items()) if number]
    return _texts({"other_models": ", ".join(models), "other_models.bytes": sum(found.values())})


def settings_of_trainer(trainer: object, callbacks: Iterable[object]) -> dict[str, str]:
    """What a trainer has been given: arguments, model, functions that make it gather predictions, and callbacks.

    Read before the first step, which may be the last; what comes later is read at its end.

    Args:
        trainer: A `transformers.Trainer`, or one like it.
        callbacks: Those of them that are told, by their classes' names.
    """
    given = ("compute_metrics", "preprocess_logits_for_metrics", "compute_loss_func")
    told: dict[str, object] = {
        f"trainer.{name}": getattr(trainer, name) is not None for name in given if hasattr(trainer, name)
    }
    known = settings_of_training(*(getattr(trainer, name, None) for name in ("args", "model", "optimizer")))
    return known | _texts({**told, **{f"callback.{type(callback).__name__}": True for callback in callbacks}})


def settings_of_forward(outputs: object) -> dict[str, str]:
    """The types in which a forward pass has computed, whoever has cast to them, and its kernels of attention.

    They stand in the graph for the backward pass, which is walked once and not kept; a pass without one tells nothing.
    What is compiled, or computed again by reentrant checkpointing, hides its inside. 5 us for each node.

    Args:
        outputs: What the model or the loss returned.
    """
    seen: set[object] = set()
    dtypes: set[str] = set()
    kernels: set[str] = set()
    for node in (one for of in tensors_in(outputs) for one in operations_of(of.grad_fn, seen, _MOST_NODES)):
        name = node.name()
        if _ATTENTION in name:
            kernels.add(name.partition("Backward")[0])
        dtypes.update(str(one.dtype).removeprefix("torch.") for one in getattr(node, "_input_metadata", ()))
    return _texts({"forward.dtypes": ", ".join(sorted(dtypes)), "forward.attention": ", ".join(sorted(kernels))})


def _texts(told: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value)[:_MOST_TEXT] for name, value in told.items() if value is not None and value != ""}


def _of_model(model: object) -> Iterator[tuple[str, object]]:
    is_several = type(model).__name__ == "ModuleList" and isinstance(model, Iterable)  # the models of a loop
    yield "class", _classes(list(model) if is_several else [model])  # type: ignore[call-overload]
    config = getattr(model, "config", None)
    for name in CONFIGURATION:
        value = getattr(config, f"_{name}", None) if name == "attn_implementation" else getattr(config, name, None)
        yield name, value if isinstance(value, str | int) else None
    yield "returned", asked_of_model(config)
    parameters = list(model.parameters()) if hasattr(model, "parameters") else []
    if parameters:
        yield "dtype", ", ".join(sorted({str(one.dtype).removeprefix("torch.") for one in parameters}))
        yield "parameters", sum(map(_numbers, parameters))
        yield "trained_parameters", sum(_numbers(one) for one in parameters if one.requires_grad)
    modules = model.modules() if hasattr(model, "modules") else ()
    # transformers' own property warns
    yield "gradient_checkpointing", any(vars(one).get("gradient_checkpointing") for one in modules) or None


def _classes(things: Iterable[object]) -> str:
    return ", ".join(type(one).__name__ for one in things)


def _numbers(parameter: torch.Tensor) -> int:
    return int(getattr(parameter, "ds_numel", 0) or parameter.numel())  # DeepSpeed leaves a placeholder


def _plain(value: object) -> object:
    """An enum by its value; nothing for what is empty."""
    value = getattr(value, "value", value)
    return value if isinstance(value, bool | int | float | str) and value != "" else None


def asked_of_generate(config: object, keywords: Mapping[str, object]) -> str:
    """What `generate` is to return beside the tokens, and keeps until all are there, by its arguments' names."""
    names = [name for name in _RETURNED if keywords.get(name, getattr(config, name, None))]
    return ", ".join(names[1:]) if _RETURNED[0] in names else ""


def sizes_of_generate(config: object, keywords: Mapping[str, object]) -> dict[str, int]:
    """How often `generate` has each prompt, and how many tokens it makes at most, by its arguments; 0 if not set."""
    told = {name: keywords.get(name, getattr(config, name, None)) for name in OF_GENERATE}
    return {name: number if isinstance(number, int) else 0 for name, number in told.items()}


def asked_of_model(config: object) -> str:
    """What every call of a model returns beside its logits, by the names in its configuration."""
    return ", ".join(name for name in _RETURNED[-2:] if getattr(config, name, None))
