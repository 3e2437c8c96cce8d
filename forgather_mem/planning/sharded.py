"""Parameters that `fully_shard` (FSDP2) has spread over ranks: this rank's shards, and the units that gather them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from forgather_mem.planning.storage_log import StorageLog

Tensors = Callable[[torch.Tensor], torch.Tensor]


def empty_shards(model: nn.Module, unknown: Tensors) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """Take the values from all shards where a unit of `fully_shard` gathers them: each old parameter with its new one.

    Args:
        model: The model.
        unknown: Makes a tensor like this one without values.
    """
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", lambda: None)()
        for group in getattr(state, "_fsdp_param_groups", ()):
            for sharded in group.fsdp_params:
                yield sharded.sharded_param, _empty(sharded, unknown)


def like_shard(tensor: torch.Tensor, unknown: Tensors) -> torch.Tensor:
    """A tensor like this one without values, spread as it is."""
    if not isinstance(tensor, DTensor):
        return unknown(tensor)
    return DTensor(unknown(tensor._local_tensor), tensor._spec, requires_grad=False)


def follow_resizing(log: StorageLog) -> None:
    """Tell the log, for good, of storages that grow or shrink: so are units gathered, and given up."""
    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> None:
        resize(storage, size)
        log.resized(storage)

    torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign]


def _empty(sharded: Any, unknown: Tensors) -> nn.Parameter:
    """Of a parameter of FSDP2; a shard may be longer than its part of the parameter, so that all are of one size."""
    old = sharded.sharded_param
    local = old._local_tensor
    sharded._sharded_param_data = unknown(sharded._sharded_param_data)
    new = sharded._sharded_param_data.as_strided(local.size(), local.stride(), local.storage_offset())
    spread = DTensor(new, old._spec, requires_grad=False)
    sharded.sharded_param = nn.Parameter(spread, requires_grad=old.requires_grad)
    return sharded.sharded_param  # type: ignore[no-any-return]
