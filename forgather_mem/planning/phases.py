"""Tells the log of a planned training its phases, and what tensors are for.

All of it is set for good: it is called in a process that plans and then ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from forgather_mem.planning.pretending import tensors_among
from forgather_mem.planning.storage_log import StorageLog


def tell_phases(log: StorageLog, model: torch.nn.Module) -> None:
    """The model's call begins "forward", `backward()` "backward"; after that it is "optimizer" until the next call."""

    def forward(_: object, args: Sequence[object], keywords: Mapping[str, object]) -> None:
        if log.phase not in ("backward", "evaluate"):  # a whole model may be checkpointed
            log.begin("forward")
        for tensor in tensors_among((args, keywords)):
            if not tensor.requires_grad:
                log.saw(tensor, "batch")

    def saw_gradients() -> None:
        for parameter in model.parameters():  # which may be sharded later
            if parameter.grad is not None:
                log.saw(parameter.grad, "gradients")

    def stepping(*_: object) -> None:
        saw_gradients()
        log.begin("optimizer")

    def stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for state in optimizer.state.values():
            for tensor in tensors_among(state):
                log.saw(tensor, "optimizer")

    model.register_forward_pre_hook(forward, with_kwargs=True)
    torch.autograd.backward = _around_backward(log, torch.autograd.backward, saw_gradients)
    register_optimizer_step_pre_hook(stepping)
    register_optimizer_step_post_hook(stepped)


def _around_backward(
    log: StorageLog, backward: Callable[..., None], afterwards: Callable[[], None]
) -> Callable[..., None]:
    def told(*args: object, **keywords: object) -> None:
        is_outer = log.phase != "backward"  # checkpointing calls it again, inside
        log.begin("backward")
        backward(*args, **keywords)
        if is_outer:
            afterwards()
            log.begin("optimizer")

    return told
