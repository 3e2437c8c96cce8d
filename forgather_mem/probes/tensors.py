"""Memory of tensors: parameters, gradients, optimizer state, buffers, and all live tensors."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from forgather_mem.errors import missing, ours
from forgather_mem.probes.budgeted import Budgeted
from forgather_mem.probes.live_objects import live_objects
from forgather_mem.system.time_budget import BUDGET_FRAC, TimeBudget
from forgather_mem.telemetry.records import Moment, RunInfo, Sample, Work

if TYPE_CHECKING:
    import torch

StorageKey = tuple[object, int]  # device, address
CONTAINERS = list, tuple, set, frozenset, deque


@dataclass(unsafe_hash=True)
class TensorProbe(Budgeted):
    """Bytes of the model's parameters, gradients and buffers and of the optimizer's state.

    Each storage is counted once: tied weights don't count twice, and a storage in two groups counts in the first of
    parameters, gradients, optimizer, buffers. Of a distributed tensor the part on this rank counts, and of a parameter
    that DeepSpeed's ZeRO-3 has partitioned its shard; a tensor on the meta device holds nothing. Gradients are absent
    if there are none: read them at `pre_optimizer_step`. Walking 300 parameters and their state takes about 3 ms, so
    the reading is repeated at an event only while it stays within its budget.

    Args:
        budget_frac: That budget, as a fraction of the time.

    Raises:
        ValueError: for a budget that is not positive.
    """

    _: KW_ONLY
    budget_frac: float = BUDGET_FRAC

    def begin(self, run: RunInfo) -> Work:
        paces: dict[str, TimeBudget] = {}

        def read(moment: Moment, sample: Sample) -> Mapping[str, float]:
            pace = paces.get(moment.event)
            if pace is None:
                pace = paces[moment.event] = TimeBudget(0.0, budget_frac=self.budget_frac)
                run.at_close(functools.partial(pace.tell, run, f"sizes of tensors at {moment.event}"))
            if moment.event == "pre_optimizer_step" and "tensors/gradients_bytes" in sample.values:
                pace.next_s = 0.0  # with the next optimizer of a step other parameters have gradients
            values = pace.take(tensor_bytes, moment.objects.get("model"), moment.objects.get("optimizer"))
            return {name: max(size, sample.values.get(name, 0.0)) for name, size in values.items()}

        return read


def tensor_bytes(model: Any, optimizer: Any = None) -> dict[str, float]:
    """Bytes by group, as returned by `TensorProbe`; missing groups are absent."""
    seen: set[object] = set()
    values: dict[str, float] = {}
    if hasattr(model, "parameters") and hasattr(model, "buffers"):
        parameters = list(model.parameters())
        # Outside the passes DeepSpeed's ZeRO-3 leaves placeholders of 0 elements; this rank's part stands beside each,
        # padded to equal parts
        shards = [shard for one in parameters if (shard := getattr(one, "ds_tensor", None)) is not None]
        size = new_bytes(storages_in([*parameters, *shards]), seen)
        if size or not any(hasattr(parameter, "ds_numel") for parameter in parameters):  # else ZeRO-3 has it elsewhere
            values["tensors/parameters_bytes"] = size
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            values["tensors/gradients_bytes"] = new_bytes(storages_in(gradients), seen)
    if isinstance(state := getattr(optimizer, "state", None), Mapping):  # AcceleratedOptimizer passes it on
        values["tensors/optimizer_bytes"] = new_bytes(storages_in(state), seen)
    if hasattr(model, "buffers"):
        values["tensors/buffers_bytes"] = new_bytes(storages_in(list(model.buffers())), seen)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensors:
    """The live tensors of one kind.

    Attributes:
        dtype, device: In torch's notation, e.g. "torch.float32" and "cuda:0".
        num_tensors: Number of tensor objects.
        num_bytes: Size of their storages, each counted once; one shared by two kinds counts in the first.
    """

    dtype: str
    device: str
    num_tensors: int
    num_bytes: int


def live_tensors() -> list[LiveTensors]:
    """All tensors held by Python objects in this process, by dtype and device, largest first.

    On demand only: it walks the heap (0.1 s for 350 000 objects). Gradients are included. Tensors held only by C++ are
    not: activations saved for the backward pass, or a tensor inside a C++ module. After `gc.freeze()` the collector
    hides frozen objects, so the heap is walked from all modules, frames and unfrozen objects instead, once after each
    freeze, which takes about four times as long.
    """
    import torch

    tensors = {id(found): found for found in tensors_in(live_objects(torch.Tensor), gradients=True)}
    seen: set[object] = set()
    rows: dict[tuple[str, str], tuple[int, int]] = {}
    for tensor in tensors.values():
        kind = str(tensor.dtype), str(tensor.device)
        count, size = rows.get(kind, (0, 0))
        rows[kind] = count + 1, size + new_bytes(dict(storages_of(tensor)), seen)
    kinds = [
        LiveTensors(dtype=dtype, device=device, num_tensors=count, num_bytes=size)
        for (dtype, device), (count, size) in rows.items()
    ]
    return sorted(kinds, key=lambda row: -row.num_bytes)


def storages_of(tensor: torch.Tensor) -> list[tuple[StorageKey, int]]:
    """The storages of a tensor with their sizes in bytes; empty if it has no memory (meta, fake)."""
    import torch

    try:
        if hasattr(tensor, "__tensor_flatten__"):  # made of inner tensors: distributed, quantised, nested
            names, _ = tensor.__tensor_flatten__()
            parts = [part for name in names if isinstance(part := getattr(tensor, name), torch.Tensor)]
        elif tensor.layout is torch.sparse_coo:  # as gradients of embeddings are
            parts = [tensor._indices(), tensor._values()]
        else:
            storage = tensor.untyped_storage()
            device = storage.device
            # reading a fake tensor's address warns; its storage is on the meta device
            if device == torch.device("meta") or not (address := storage.data_ptr()):
                return []
            return [((device, address), storage.nbytes())]
    except ours(RuntimeError, ValueError):  # lazy parameters, layouts and backends without storages
        return []
    return [storage for part in parts for storage in storages_of(part)]


def tensors_in(value: object, *, gradients: bool = False) -> Iterator[torch.Tensor]:
    """The tensors in a module, an optimizer, or nested containers, and their gradients if they are wanted.

    Nothing is imported for it: without torch there are none. A tensor that is also another's gradient comes twice.
    """
    if "torch" not in sys.modules:
        return
    import torch

    todo, seen = [value], set[int]()
    for part in todo:
        if isinstance(part, int | float | str) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            yield part
            if gradients and (gradient := _gradient(part)) is not None:
                yield gradient
        elif isinstance(part, Mapping):
            todo += values_of(part)
        elif isinstance(part, CONTAINERS):
            todo += part
        elif isinstance(part, torch.nn.Module):
            todo += [*part.parameters(), *part.buffers()]
        elif isinstance(part, torch.optim.Optimizer):
            todo += [part.state, part.param_groups]


def storages_in(value: object) -> dict[StorageKey, int]:
    """The storages of all tensors in a module, an optimizer's state, or nested containers, with their sizes."""
    return dict(storage for tensor in tensors_in(value) for storage in storages_of(tensor))


def new_bytes(storages: Mapping[StorageKey, int], seen: set[object]) -> int:
    """The size of those storages that were not seen; they are seen then."""
    total = sum(size for key, size in storages.items() if key not in seen)
    seen.update(storages)
    return total


def values_of(mapping: Mapping[Any, Any]) -> list[Any]:
    """The values that a mapping holds. A dictionary's own methods are not asked.

    They may do anything: those of transformers' `MODEL_MAPPING` import all of its models.
    """
    return list(dict.values(mapping) if isinstance(mapping, dict) else mapping.values())


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    with missing(RuntimeError, ValueError):
        return tensor.grad if tensor.is_leaf else None  # reading it from a non-leaf tensor warns
    return None
