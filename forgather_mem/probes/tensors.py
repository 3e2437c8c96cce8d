"""Which tensors hold the memory: parameters, gradients, optimizer state, buffers; and which are alive at all?"""

from __future__ import annotations

import gc
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forgather_mem.probes.pace import BUDGET_FRAC, Pace
from forgather_mem.sample import Moment, RunInfo, Sample

if TYPE_CHECKING:
    import torch

StorageKey = tuple[str, int]  # device, address


class TensorProbe:
    """Bytes of the model's parameters, gradients and buffers and of the optimizer's state.

    Storages are counted, each once: tied weights do not count twice, and a storage that stands in two
    groups counts in the first of parameters, gradients, optimizer, buffers. Of a distributed tensor the
    part on this rank counts; a tensor on the meta device holds nothing. Gradients are absent where there are
    none: read them at `pre_optimizer_step`. Walking 300 parameters takes about 1 ms, so at each event the
    reading is repeated only when it stays under its share of the time.

    Args:
        budget_frac: That share.

    Raises:
        ValueError: for a budget that is not positive.
    """

    names = ("tensors/",)

    def __init__(self, *, budget_frac: float = BUDGET_FRAC) -> None:
        if not 0 < budget_frac <= 1:
            raise ValueError(f"TensorProbe(budget_frac={budget_frac}): give a share above 0 and at most 1")
        self.budget_frac = budget_frac
        self.reading: Hashable = (type(self), budget_frac)
        self._paces: dict[str, Pace] = {}

    def begin(self, run: RunInfo) -> None:
        self._paces = {}

    def end(self, run: RunInfo) -> None:
        self._paces = {}

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        pace = self._paces.get(moment.event)
        if pace is None:
            pace = self._paces[moment.event] = Pace(0.0, budget_frac=self.budget_frac)
        return pace.take(tensor_bytes, moment.objects.get("model"), moment.objects.get("optimizer"))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_paces": {}}


def tensor_bytes(model: Any, optimizer: Any = None) -> dict[str, float]:
    """Bytes by group as `TensorProbe` gives them; groups that don't exist are absent."""
    seen: set[StorageKey] = set()
    values: dict[str, float] = {}
    if hasattr(model, "parameters") and hasattr(model, "buffers"):
        parameters = list(model.parameters())
        values["tensors/parameters_bytes"] = _add_storages(parameters, seen)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            values["tensors/gradients_bytes"] = _add_storages(gradients, seen)
    if isinstance(state := getattr(optimizer, "state", None), Mapping):  # AcceleratedOptimizer hands it on
        values["tensors/optimizer_bytes"] = _add_storages(_tensors_in(list(state.values())), seen)
    if hasattr(model, "buffers"):
        values["tensors/buffers_bytes"] = _add_storages(model.buffers(), seen)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensors:
    """The live tensors of one kind.

    Attributes:
        dtype, device: As torch writes them, e.g. "torch.float32" and "cuda:0".
        num_tensors: How many tensor objects.
        num_bytes: Their storages, each counted once; one that tensors of two kinds share counts in the first.
    """

    dtype: str
    device: str
    num_tensors: int
    num_bytes: int


def live_tensors() -> list[LiveTensors]:
    """All tensors that Python objects hold in this process, by dtype and device, the largest first.

    On demand only: it walks the heap (40 ms for 400 000 objects). Gradients are included. What only C++ holds
    is not: activations saved for the backward pass, or a tensor inside a C++ module. After `gc.freeze()` the
    collector hides frozen objects, so the heap is walked from all modules, frames and unfrozen objects
    instead, which takes about ten times as long.
    """
    import torch

    tensors = {id(found): found for found in _live_objects(torch.Tensor)}
    for tensor in list(tensors.values()):
        gradient = _gradient(tensor)
        if gradient is not None:
            tensors[id(gradient)] = gradient
    seen: set[StorageKey] = set()
    rows: dict[tuple[str, str], tuple[int, int]] = {}
    for tensor in tensors.values():
        kind = str(tensor.dtype), str(tensor.device)
        count, size = rows.get(kind, (0, 0))
        rows[kind] = count + 1, size + _add_storages([tensor], seen)
    kinds = [
        LiveTensors(dtype=dtype, device=device, num_tensors=count, num_bytes=size)
        for (dtype, device), (count, size) in rows.items()
    ]
    return sorted(kinds, key=lambda row: -row.num_bytes)


def storages_of(tensor: torch.Tensor) -> Iterator[tuple[StorageKey, int]]:
    """The storages a tensor stands on, with their bytes; none for a tensor without memory (meta, fake)."""
    import torch

    try:
        if hasattr(tensor, "__tensor_flatten__"):  # made of inner tensors: distributed, quantised, nested
            names, _ = tensor.__tensor_flatten__()
            parts = [getattr(tensor, name) for name in names]
        elif tensor.layout is torch.sparse_coo:
            parts = [tensor._indices(), tensor._values()]
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
        else:
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if address:
                yield (str(tensor.device), address), storage.nbytes()
            return
    except (RuntimeError, ValueError):  # fake tensors, lazy parameters, backends without storages
        return
    for part in parts:
        yield from storages_of(part)


def _add_storages(tensors: Iterable[torch.Tensor], seen: set[StorageKey]) -> int:
    total = 0
    for tensor in tensors:
        for key, num_bytes in storages_of(tensor):
            if key not in seen:
                seen.add(key)
                total += num_bytes
    return total


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors_in(inner)


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    try:
        return tensor.grad if tensor.is_leaf else None  # asking a non-leaf tensor for it warns
    except (RuntimeError, ValueError):
        return None


def _live_objects(wanted: type) -> list[Any]:
    # type(), not isinstance(): a proxy's __class__ runs code of its own
    if not gc.get_freeze_count():
        return [found for found in gc.get_objects() if issubclass(type(found), wanted)]
    todo: list[Any] = [sys.modules, list(sys._current_frames().values()), *gc.get_objects()]
    seen = {id(found) for found in todo}
    found = [root for root in todo if issubclass(type(root), wanted)]
    while todo:
        batch, todo = todo, []
        for start in range(0, len(batch), 1000):
            for referent in gc.get_referents(*batch[start : start + 1000]):
                if id(referent) in seen or not gc.is_tracked(referent):
                    continue
                seen.add(id(referent))
                todo.append(referent)
                if issubclass(type(referent), wanted):
                    found.append(referent)
    return found
