"""A training with something else than its own: other arguments, no device, weights that are not read."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

import torch
from torch import nn

from forgather_mem.errors import PlanError, did_you_mean
from forgather_mem.planning.batches import Trainer
from forgather_mem.planning.recurrent import take_fewer_tokens

COMPILED = "torch.compile is planned as if it were off: compiled it usually takes less."
ATTENTION = "attn_implementation"
DTYPE = "dtype"
_CONFIGURES = ("dtype", "torch_dtype", "attn_implementation")
_CHECKPOINTING = ("gradient_checkpointing", "activation_checkpointing")  # of transformers 4, and of 5
_OPTIMIZERS = ("adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd")


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
        elif name in _CHECKPOINTING:
            for alias in _CHECKPOINTING:
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


def need_no_values() -> None:
    """Let torch, for good, not ask for values that change nothing here.

    `torch.amp.GradScaler` steps as if no gradient were infinite, and a distribution does not check what it is given.
    Data is loaded in this process: another could not send it. Nor as many tokens, where a layer loops over them.
    """

    def step(_: object, optimizer: torch.optim.Optimizer, found: object, *args: object, **keywords: object) -> object:
        return optimizer.step(*args, **keywords)  # type: ignore[call-overload]

    take_fewer_tokens()
    torch.amp.GradScaler._maybe_opt_step = step  # type: ignore[method-assign, assignment]
    torch.distributions.Distribution.set_default_validate_args(False)
    loading = {"num_workers": 0, "timeout": 0, "pin_memory": False, "persistent_workers": False}
    for name, value in {**loading, "prefetch_factor": None, "multiprocessing_context": None}.items():
        setattr(torch.utils.data.DataLoader, name, property(lambda _, value=value: value, lambda *_: None))  # type: ignore[misc]


def leave_uncompiled(notes: list[str], is_wanted: bool = False) -> None:
    """Let all run, for good, as if `torch.compile` were off; a note says so where it is on, or is wanted."""
    if is_wanted:
        notes.append(COMPILED)
    frames = sys.modules.get("torch._dynamo.eval_frame")
    names = vars(frames) if frames is not None else {}
    choose = names.get("_callback_from_stance")  # tried with torch 2.13; without it no note is made
    if choose is None:
        return

    def chosen(callback: object) -> object:
        if not callable(callback):
            return choose(callback)
        if COMPILED not in notes:
            notes.append(COMPILED)
        return None

    names["_callback_from_stance"] = chosen


def leave_weights_unread(models: type) -> None:
    """From now on, in this process, parameters take no memory, and `from_pretrained` reads the configuration alone.

    Args:
        models: transformers' `PreTrainedModel`.
    """
    register, move = nn.Module.register_parameter, nn.Module.to

    def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":  # one that is tied stays the same
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    def moved(module: nn.Module, *args: object, **keywords: object) -> nn.Module:
        if all(parameter.device.type != "meta" for parameter in module.parameters()):
            return move(module, *args, **keywords)  # type: ignore[call-overload,no-any-return]
        dtype = torch._C._nn._parse_to(*args, **keywords)[1]  # type: ignore[call-overload]
        return module if dtype is None else move(module, dtype)

    def from_pretrained(cls: object, name: str, *_: object, config: object = None, **keywords: object) -> object:
        if config is None:
            config = cls.config_class.from_pretrained(name)  # type: ignore[attr-defined]
        chosen = {key: keywords[key] for key in _CONFIGURES if keywords.get(key) not in (None, "auto")}
        return cls._from_config(config, **chosen)  # type: ignore[attr-defined]

    nn.Module.register_parameter = registered  # type: ignore[method-assign,assignment]
    nn.Module.to = moved  # type: ignore[method-assign,assignment]
    models.from_pretrained = classmethod(from_pretrained)  # type: ignore[attr-defined,arg-type]
