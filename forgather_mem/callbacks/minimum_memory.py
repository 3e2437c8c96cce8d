"""The minimum memory of a training: parameters, gradients and optimizer state, without activations."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

# Exceptions that an optimizer's step may raise on tensors without data.
_CANT_STEP = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, KeyError, AssertionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumMemory:
    """Bytes on this process's devices that a training can't do without; activations come on top.

    Attributes:
        parameters_bytes: Parameters and buffers, shared ones counted once; of sharded ones this rank's part.
        gradients_bytes: One gradient per trainable parameter, in its dtype.
        optimizer_bytes: The optimizer's state after its first step; None without an optimizer, or if it can't be known
            before.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """The sum of all known parts, in bytes."""
        return self.parameters_bytes + self.gradients_bytes + (self.optimizer_bytes or 0)


def estimate_minimum(model: torch.nn.Module, optimizer: Any = None) -> MinimumMemory:
    """The minimum memory for training this model with this optimizer: exact sizes, nothing is allocated.

    If the optimizer has not stepped yet, a copy of it is stepped on meta tensors, which have shapes but no memory. If
    its step needs values (Adafactor, 8-bit states), its share is unknown before the first step. Copies of weights made
    by mixed precision during a step are not included.

    >>> model = torch.nn.Linear(1000, 100, bias=False)
    >>> estimate_minimum(model, torch.optim.SGD(model.parameters(), momentum=0.9))
    MinimumMemory(parameters_bytes=400000, gradients_bytes=400000, optimizer_bytes=400000)
    """
    parameters = list(model.parameters())
    return MinimumMemory(
        parameters_bytes=sum(map(_num_bytes, parameters)) + sum(map(_num_bytes, model.buffers())),
        gradients_bytes=sum(_num_bytes(parameter) for parameter in parameters if parameter.requires_grad),
        optimizer_bytes=None if optimizer is None else _optimizer_bytes(optimizer),
    )


def _optimizer_bytes(optimizer: Any) -> int | None:
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):  # accelerate wraps it
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        return None
    if not _tensors(optimizer.state):
        optimizer = _stepped_without_memory(optimizer)
    return None if optimizer is None else sum(map(_num_bytes, _tensors(optimizer.state)))


def _stepped_without_memory(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """A copy of the optimizer on the meta device, after its first step; None if it can't be made."""
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)  # copying would lose a subclass's attributes
    twin.__dict__.pop("step", None)  # a scheduler's wrapper would step the original
    for name in [name for name in twin.__dict__ if name.endswith("_hooks")]:
        twin.__dict__[name] = type(twin.__dict__[name])()
    twin.state = defaultdict(dict)
    one_by_one = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}
    twin.param_groups = [
        {
            **group,
            **{name: value for name, value in one_by_one.items() if name in group},
            "params": [_shape_of(parameter) for parameter in group["params"]],
        }
        for group in optimizer.param_groups
    ]
    try:
        twin.step()
    except _CANT_STEP:
        return None
    return twin


def _shape_of(parameter: torch.Tensor) -> torch.nn.Parameter:
    local = _local(parameter)
    twin = torch.nn.Parameter(torch.empty_like(local, device="meta"), requires_grad=local.requires_grad)
    if local.requires_grad:
        twin.grad = torch.empty_like(local, device="meta")
    return twin


def _tensors(state: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]


def _num_bytes(tensor: torch.Tensor) -> int:
    local = _local(tensor)
    return local.numel() * local.element_size()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor."""
    part = getattr(tensor, "_local_tensor", None)
    return part if isinstance(part, torch.Tensor) else tensor
