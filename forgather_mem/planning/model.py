"""Takes the values from a model and its optimizer: what is planned then computes nothing.

A parameter stays the same object, so that whoever has it has no values either: other optimizers, lists of the user's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import nn

from forgather_mem.errors import PlanError
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.ranks import empty_shards, like_shard
from forgather_mem.planning.storage_log import StorageLog

WORKSPACES = "Not in the plan is the workspace"


def empty(model: nn.Module, optimizer: torch.optim.Optimizer | None, mode: Pretending, log: StorageLog) -> None:
    """Put tensors of the same size without values in place of all weights; what shares memory shares it still.

    Buffers on the host keep their values: models ask for them (positions, masks), and they are small.

    Args:
        model: The model.
        optimizer: Given the emptied parameters; its state, if it has one already, loses its values, too.
        mode: Makes tensors without values.
        log: Told of each parameter and state.

    Raises:
        PlanError: if a parameter is of a kind that can't be planned.
    """
    emptied = _Emptied(mode, log)  # nothing holds it: where a model is sharded later its weights go
    emptied.model(model)
    if optimizer is not None:
        emptied.optimizer(optimizer)


def notes_on(model: nn.Module, on_device: bool) -> list[str]:
    """What is not known of a model: its kernels keep tensors whose size only they know."""
    kinds = sorted({type(module).__name__ for module in model.modules() if isinstance(module, nn.RNNBase)})
    return [f"{WORKSPACES} of {', '.join(kinds)}, a lower bound."] if kinds and on_device else []


class _Emptied:
    """Old parameters and new ones."""

    def __init__(self, mode: Pretending, log: StorageLog) -> None:
        self._mode, self._log = mode, log
        self._new: dict[int, nn.Parameter] = {}  # by the id of the old one, which stays alive in `_old`
        self._storages: dict[int, torch.Tensor] = {}
        self._old: list[torch.Tensor] = []
        self._shared: Counter[int] = Counter()  # tensors in a storage

    def model(self, model: nn.Module) -> None:
        with torch.no_grad():
            for whole, shard in empty_shards(model, self._mode.unknown):
                self._is_now(whole, shard)
        for name, parameter in model.named_parameters():
            if id(parameter) not in self._new:
                _check_kind(name, parameter)
        self._shared = Counter(parameter.untyped_storage()._cdata for parameter in model.parameters())
        with torch.no_grad():
            for module in model.modules():
                for key, old in module._parameters.items():
                    if old is not None:
                        module._parameters[key] = self._parameter_of(old)
                for key, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[key] = new = buffer if buffer.device.type == "cpu" else self._like(buffer)
                        self._log.saw(new, "parameters")

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                group["params"] = [self._new.get(id(parameter), parameter) for parameter in group["params"]]
            for parameter in list(optimizer.state):
                new = self._new.get(id(parameter))
                if new is not None:
                    optimizer.state[new] = self._state_of(optimizer.state.pop(parameter))

    def _state_of(self, state: Mapping[str, object]) -> dict[str, object]:
        emptied = {
            key: like_shard(value, self._mode.unknown) if isinstance(value, torch.Tensor) and value.dim() else value
            for key, value in state.items()
        }
        for value in emptied.values():
            if isinstance(value, torch.Tensor):
                self._log.saw(value, "optimizer")
        return emptied

    def _parameter_of(self, old: nn.Parameter) -> nn.Parameter:
        if id(old) not in self._new:
            new = nn.Parameter(self._like(old), requires_grad=old.requires_grad)
            new.__dict__.update(old.__dict__)
            _swap(old, new)
            self._new[id(old)] = old
            self._old.append(new)
            self._log.saw(old, "parameters")
        return self._new[id(old)]

    def _is_now(self, old: nn.Parameter, new: nn.Parameter) -> None:
        new.__dict__.update(old.__dict__)
        self._new[id(old)] = new
        self._old.append(old)
        self._log.saw(new, "parameters")

    def _like(self, old: torch.Tensor) -> torch.Tensor:
        storage = old.untyped_storage()
        if self._shared[storage._cdata] <= 1:
            return self._mode.unknown(old)
        base = self._storages.get(storage._cdata)
        if base is None:
            base = self._storages[storage._cdata] = self._mode.unknown_bytes(storage.nbytes())
        return base.view(old.dtype).as_strided(old.size(), old.stride(), old.storage_offset())


def _swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """As `torch.utils.swap_tensors`, which refuses where somebody has a weak reference: that is to have the new one.

    Hooks stay.
    """
    hooks = one._backward_hooks, one._post_accumulate_grad_hooks
    torch._C._swap_tensor_impl(one, other)
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    for name, kept in zip(("_backward_hooks", "_post_accumulate_grad_hooks"), hooks, strict=True):
        if kept:
            setattr(one, name, kept)


def _check_kind(name: str, parameter: torch.Tensor) -> None:
    if isinstance(parameter, nn.UninitializedParameter):
        raise PlanError(f"{name} has no size before the first batch: run one before you plan")
    kind = type(parameter)
    if kind not in (torch.Tensor, nn.Parameter):
        raise PlanError(f"{name} is a {kind.__name__}: quantized and sharded weights can't be planned")
