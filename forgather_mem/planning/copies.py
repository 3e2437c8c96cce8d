"""Copies of tensors without values: what shares memory does so in a copy and in what `torch.save` writes, too."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.private_state import let_tensors_answer, surround


def let_tensors_be_copied(notes: list[str]) -> None:
    """Let those without values be copied, pickled and saved, for good; it is called in a process that plans."""
    saved: list[dict[int, _Memory]] = []  # what has been met of what is saved now; pickle alone shares no memory

    def save(there: Callable[..., object], *args: object, **keywords: object) -> object:
        saved.append({})
        try:
            return there(*args, **keywords)
        finally:
            saved.pop()

    def reduced(tensor: torch.Tensor, _: object) -> tuple[object, ...]:
        return _tensor_in, _described(tensor, saved[-1] if saved else {})

    surround("torch:save", save, notes)
    let_tensors_answer({"__reduce_ex__": reduced, "__deepcopy__": _copied, "share_memory_": lambda one: one}, notes)
    torch.serialization.add_safe_globals([_Memory, _tensor_in])


class _Memory:
    """That of tensors, as it is copied: its size; where there is none yet it is made when a tensor is made in it."""

    def __init__(self, num_bytes: int, storage: Callable[[], torch.UntypedStorage | None] = lambda: None) -> None:
        self._num_bytes, self._storage = num_bytes, storage

    def __reduce__(self) -> tuple[object, ...]:
        return _Memory, (self._num_bytes,)

    def whole(self, mode: Pretending) -> torch.UntypedStorage:
        """All of it; new memory is noted."""
        there = self._storage()
        if there is None:
            made = mode.unknown(torch.empty(self._num_bytes, dtype=torch.uint8, device="meta"))
            mode.log.saw(made)
            there = made.untyped_storage()
            self._storage = lambda: there
        return there


def _described(tensor: torch.Tensor, met: dict[int, _Memory]) -> tuple[Any, ...]:
    storage = tensor.untyped_storage()
    memory = met.setdefault(storage._cdata, _Memory(storage.nbytes(), weakref.ref(storage)))
    place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    return memory, tensor.dtype, *place, tensor.requires_grad, isinstance(tensor, torch.nn.Parameter)


def _tensor_in(
    memory: _Memory,
    dtype: torch.dtype,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    mode = next(one for one in _get_current_dispatch_mode_stack() if isinstance(one, Pretending))
    made = mode.unknown_in(memory.whole(mode), dtype, size, stride, offset)
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


def _copied(tensor: torch.Tensor, memo: dict[Any, Any]) -> object:
    """Of a parameter the copy has memory of its own, and no gradient, which that of another tensor has."""
    if id(tensor) not in memo:
        if isinstance(tensor, torch.nn.Parameter):
            memo[id(tensor)] = torch.nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
        else:
            met = memo.setdefault("without values", {})
            memo[id(tensor)] = _tensor_in(*copy.deepcopy(_described(tensor, met), memo))
            memo[id(tensor)].grad = copy.deepcopy(tensor.grad, memo)
    return memo[id(tensor)]
