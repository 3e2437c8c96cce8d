"""Copies of tensors without values: what shares memory does so in a copy and in what `torch.save` writes, too."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from forgather_mem.planning.known_operations import Made
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.private_state import let_tensors_answer
from forgather_mem.source.source_lines import calling_place, line_name


def let_tensors_be_copied(notes: list[str]) -> None:
    """Let those without values be copied, pickled and saved, for good; it is called in a process that plans."""
    let_tensors_answer({"__reduce_ex__": _reduced, "__deepcopy__": _copied, "share_memory_": lambda one: one}, notes)
    torch.serialization.add_safe_globals([_Memory, Made, _tensor_in])


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


def _reduced(tensor: torch.Tensor, _: object = None) -> tuple[Callable[..., torch.Tensor], tuple[object, ...]]:
    """As pickle wants it. Of one storage it is always the same `_Memory`, so that this is copied once."""
    storage = tensor.untyped_storage()
    memory = vars(storage).setdefault("memory", _Memory(storage.nbytes(), weakref.ref(storage)))
    made = Made(tensor.size(), tensor.stride(), tensor.dtype, 0, int(tensor.storage_offset()))
    return _tensor_in, (memory, made, tensor.requires_grad, isinstance(tensor, torch.nn.Parameter))


def _tensor_in(memory: _Memory, made: Made, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    mode = next(one for one in _get_current_dispatch_mode_stack() if isinstance(one, Pretending))
    tensor = mode.unknown_in(memory.whole(mode), made)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def _copied(tensor: torch.Tensor, memo: dict[int, torch.Tensor]) -> torch.Tensor:
    """Of a parameter the copy has memory of its own, and no gradient, which that of another tensor has."""
    if id(tensor) not in memo:
        mode = next(one for one in _get_current_dispatch_mode_stack() if isinstance(one, Pretending))
        if isinstance(tensor, torch.nn.Parameter):
            memo[id(tensor)] = torch.nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
        else:
            memo[id(tensor)] = _tensor_in(*copy.deepcopy(_reduced(tensor)[1], memo))  # type: ignore[arg-type]
            memo[id(tensor)].grad = copy.deepcopy(tensor.grad, memo)
        mode.log.copied(tensor, memo[id(tensor)], line_name(*(calling_place() or ("", 0))))
    return memo[id(tensor)]
