"""The truth for plans: what the tensors of a real training take, counted on the host."""

import gc
import tracemalloc
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Trainer


class Counted(TorchDispatchMode):
    """The most bytes of tensors alive, counted anew from all storages that were seen when there is one more or larger.

    Seen is what goes into an operation, and what comes out of it: a tensor that nothing made here counts from its
    first use on.

    All tensors that are alive at the start count: those of the training and what other tests have left in this process.

    Where `tracemalloc` runs, arrays of numpy that are no tensor's count as well, and it is counted at each operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = {storage_of(tensor)._weak_ref() for tensor in alive_tensors()}
        self.sizes: dict[int, int] = {}
        self.peak_bytes = self.alive_bytes = 0
        self.count()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what they are made of comes here
        self.see(args, kwargs)
        result = func(*args, **(kwargs or {}))
        if is_in_place_without_a_mode(func, args):
            return args[0].copy_(result)
        if is_sum_of_gradients(func, args):  # it counts from the next one on: torch makes it in the first
            self.seen.add(storage_of(result)._weak_ref())
            return result
        self.see(result)
        return result

    def see(self, *values: Any) -> None:
        more = tracemalloc.is_tracing()
        for tensor in tree_leaves(values):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta and not isinstance(tensor, FakeTensor):
                for one in (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,):
                    storage = one.untyped_storage()
                    if self.sizes.get(storage._cdata) != storage.nbytes():
                        self.seen.add(storage._weak_ref())
                        more = True
        if more:
            self.count()

    def count(self) -> None:
        self.sizes = {}
        for reference in list(self.seen):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference)
            if storage is None:
                self.seen.discard(reference)
                torch.UntypedStorage._free_weak_ref(reference)
            else:
                self.sizes[storage._cdata] = storage.nbytes()
        arrays = tracemalloc.get_traced_memory()[1] if tracemalloc.is_tracing() else 0  # since the last operation
        if arrays:
            tracemalloc.reset_peak()
        before, self.alive_bytes = self.alive_bytes, sum(self.sizes.values())
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes, before + arrays)


def is_in_place_without_a_mode(func: Any, args: Any) -> bool:
    """Where any mode is, torch's backward passes make a second tensor of these: as the profiler tells."""
    aten = torch.ops.aten
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return False
    fills = (aten.scatter_add.default, aten.index_add.default, aten.scatter.src)
    return func in fills or (func is aten.index_put.default and len(args) > 3)


def is_sum_of_gradients(func: Any, args: Any) -> bool:
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled() or func is not torch.ops.aten.add.Tensor:
        return False
    is_alike = len(args) == 2 and isinstance(args[1], torch.Tensor) and args[0].shape == args[1].shape
    return is_alike and torch._C._storage_Use_Count(args[0].untyped_storage()._cdata) == 2  # by it, and from here


def alive_tensors() -> list[torch.Tensor]:
    """All that have memory on the host, but for what was imported, which a plan does not see either."""
    gc.collect()
    return [
        one
        for one in gc.get_objects()
        if issubclass(type(one), torch.Tensor)
        and not issubclass(type(one), FakeTensor)
        and one.device.type == "cpu"
        and one.layout == torch.strided
    ]


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()


def real_peak_bytes(trainer: Trainer) -> int:
    """Of the whole training."""
    counted = Counted()
    with counted:
        trainer.train()
    return counted.peak_bytes
