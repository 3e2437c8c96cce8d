"""Takes the values from a model and its optimizer: what is planned then computes nothing.

A parameter stays the same object, so that whoever has it has no values either: other optimizers, lists of the user's.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from queue import Queue
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from forgather_mem.errors import PlanError
from forgather_mem.heap.owner_paths import in_peoples_words
from forgather_mem.planning.known_operations import tensors_among
from forgather_mem.planning.loop.notes import Note
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.private_state import swap
from forgather_mem.planning.ranks import empty_shards, like_shard
from forgather_mem.planning.storage_log import Kept, StorageLog
from forgather_mem.probes.live_objects import live_objects
from forgather_mem.units import MIB, format_bytes

if TYPE_CHECKING:
    from forgather_mem.heap.reachable import ReachableGraph

OTHER_MODELS, OTHER_TENSORS, KEPT = "other models", "other tensors", "kept"
_PLAIN = FakeTensor, torch.Tensor, nn.Parameter
_Kind = TypeVar("_Kind")


class AliveThings:
    """What there is in this process but garbage, found in one pass over the heap, which the plans of a command share.

    Nothing is kept by it, since that would not be given back in a plan.
    """

    def __init__(self) -> None:
        gc.unfreeze()
        gc.collect()
        kinds = nn.Module, torch.Tensor, Optimizer, _BaseDataLoaderIter, Queue
        self._found = [weakref.ref(one) for one in live_objects(*kinds)]

    def all_of(self, kind: type[_Kind]) -> list[_Kind]:
        """Those that there are still."""
        return [one for found in self._found if isinstance(one := found(), kind)]


def notes_on(layers: Iterable[type], on_device: bool) -> list[Note]:
    """What is not known of layers of these classes: what kernels keep, or take within themselves, only they know."""
    unknown = nn.RNNBase if on_device else nn.modules.conv._ConvNd
    kinds = ", ".join(sorted({one.__name__ for one in layers if issubclass(one, unknown)}))
    kept = Note(f"Not in the plan is the workspace of {kinds}, a lower bound.", "at least")
    taken = Note(f"Not in the plan is what oneDNN takes within {kinds}: copies of its input and result for a moment.")
    return [kept if on_device else taken] if kinds else []


class Emptied:
    """Puts tensors of the same size without values in place of weights, each with memory of its own.

    Buffers on the host keep their values: models ask for them (positions, masks), and they are small. Nothing holds
    this for long: where a model is sharded later its weights go.

    Args:
        mode: Makes tensors without values.
        log: Told of each parameter and state.
    """

    def __init__(self, mode: Pretending, log: StorageLog) -> None:
        self._mode, self._log = mode, log
        self._taken = set[torch.Tensor]()  # parameters without values by now

    def model(self, model: nn.Module) -> None:
        """Take its values.

        Raises:
            PlanError: if a parameter is of a kind that can't be planned.
        """
        for shard in empty_shards(model, self._mode.unknown):
            self._taken.add(shard)
            self._log.saw(shard, "parameters")
        for name, parameter in model.named_parameters():
            if isinstance(parameter, nn.UninitializedParameter):
                raise PlanError(f"{name} has no size before the first batch: run one before you plan")
            if type(parameter) not in _PLAIN and parameter not in self._taken:
                kind = type(parameter).__name__
                raise PlanError(f"{name} is a {kind}: quantized and sharded weights can't be planned")
        self._modules(list(model.modules()), "parameters")

    def parameter(self, one: torch.Tensor, part: str = "parameters") -> None:
        """Take its values, also where it is in no model."""
        if isinstance(one, FakeTensor) or one in self._taken:  # another model has it, too
            return
        values = nn.Parameter(self._mode.unknown(one), requires_grad=one.requires_grad)
        values.__dict__.update(one.__dict__)
        swap(one, values)
        values.grad = None
        self._taken.add(one)
        self._log.saw(one, part)
        self._log.shares(values, one)

    def optimizer(self, optimizer: Optimizer) -> None:
        """The state of emptied parameters, if it has one already, loses its values, too."""
        for parameter in [one for one in optimizer.state if one in self._taken]:
            state = optimizer.state[parameter]
            optimizer.state[parameter] = {key: self._state_of(value) for key, value in state.items()}

    def others(self, alive: AliveThings, log: StorageLog, replaced: object = None) -> dict[nn.Module, int]:
        """Take the parameters of all other models that are alive, and note what else is; on a device what is there.

        Args:
            alive: What there is.
            log: Told of them.
            replaced: A batch that is planned in another size.

        Returns:
            The other models, with the bytes of each.
        """
        self._log, passed_over = log, set(map(id, tensors_among(replaced)))
        held, modules = alive.all_of(torch.Tensor), alive.all_of(nn.Module)
        if self._mode.host is not None:
            is_there = any(one.device.type not in ("cpu", "meta") for one in held)
            passed_over.update(id(one) for one in held if is_there and one.device.type == "cpu")

        def is_taken(one: torch.Tensor | None) -> bool:
            is_new = one is not None and one not in self._taken
            return not is_new or (type(one) in (torch.Tensor, nn.Parameter) and id(one) not in passed_over)

        modules = [module for module in modules if all(map(is_taken, module._parameters.values()))]
        own = set(map(id, self._taken))
        sizes = {root: sum(one.nbytes for one in root.parameters() if id(one) not in own) for root in roots(modules)}
        self._modules(modules, OTHER_MODELS)
        for tensor in held:
            has_storage = tensor.layout == torch.strided and not hasattr(type(tensor), "__tensor_flatten__")
            is_other = has_storage and not tensor.is_meta and id(tensor) not in passed_over
            if is_other and id(tensor) not in own and not log.knows(tensor):
                where = log if self._mode.host is None or tensor.device.type != "cpu" else self._mode.host
                where.saw(tensor, OTHER_TENSORS)
        gc.freeze()  # a Trainer collects garbage before it trains
        return {root: size for root, size in sizes.items() if size >= MIB}

    def _modules(self, modules: Sequence[nn.Module], part: str) -> None:
        """Without those below them."""
        for module in modules:
            for parameter in module._parameters.values():
                if parameter is not None:
                    self.parameter(parameter, part)
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    new = buffer if buffer.device.type == "cpu" else self._mode.unknown(buffer)
                    module._buffers[key] = new
                    self._log.saw(new, part)

    def _state_of(self, value: object) -> object:
        if isinstance(value, torch.Tensor) and value.dim():
            value = like_shard(value, self._mode.unknown)
        for tensor in tensors_among(value):
            self._log.saw(tensor, "optimizer")
        return value


def holders_of(
    modules: Collection[nn.Module], kinds: Mapping[str, Mapping[int, int]], sizes: Sequence[int]
) -> tuple[dict[nn.Module, str], dict[str, list[Kept]]]:
    """Who holds each of these modules, and the storages of each kind, as people write it.

    Args:
        modules: The same.
        kinds: The numbers of storages, by `_cdata`.
        sizes: Of the storages, by number.

    Returns:
        The names of the modules; and of each kind who has a MiB or more, the most first.
    """
    from forgather_mem.heap.reachable import MANY, ReachableGraph  # in the child that plans alone

    names = {module: type(module).__name__ for module in modules}
    unnamed, left = {id(one): one for one in modules}, {key: kind for kind, of in kinds.items() for key in of}
    found: dict[tuple[str, str], tuple[object, set[int]]] = {}  # by kind and name: the container, and its storages
    walk = ReachableGraph.walk() if unnamed or left else ReachableGraph()
    for at, node in enumerate(walk.nodes):
        if (module := unnamed.pop(id(node), None)) is not None:
            names[module] = _name_of(walk, at)
        # Of a long container the walk has seen a few
        is_long = type(node) in (list, tuple, deque, dict) and len(node) > MANY
        items = tensors_among(list(node.values() if isinstance(node, dict) else node)) if is_long else [node]
        inside = [one for one in items if type(one) in _PLAIN]
        for key in left.keys() & {one.untyped_storage()._cdata for one in inside if one.layout == torch.strided}:
            above, kind = _container(walk, at), left.pop(key)
            holder = kind, _name_of(walk, above)
            found.setdefault(holder, (walk.nodes[above], set()))[1].add(kinds[kind][key])
    walk.forget()
    held: dict[str, list[Kept]] = {kind: [] for kind in kinds}
    for (kind, name), (container, numbers) in found.items():
        num_items = len(container) if isinstance(container, list | deque) else 0
        one = Kept(name, num_items, sum(sizes[number] for number in numbers), numbers)
        held[kind] += [one] * (one.num_bytes >= MIB)
    return names, {kind: sorted(rows, key=lambda one: -one.num_bytes) for kind, rows in held.items()}


def _container(walk: ReachableGraph, at: int) -> int:
    """What has it, as a list; of a weight the whole model."""
    is_weight = isinstance(walk.nodes[at], nn.Parameter)
    while (is_weight and isinstance(walk.owner(at), nn.Module)) or "[" in walk.path(at):
        at = walk.parent(at)
    return at


def _name_of(walk: ReachableGraph, at: int) -> str:
    return in_peoples_words((walk.path if walk.owner(at) is None else walk.holder)(at))


def note_of(part: str, holders: Sequence[tuple[str, int]]) -> list[str]:
    """Who holds most of it."""
    told = ", ".join(f"{name} {format_bytes(size)}" for name, size in holders[:3])
    return [f"{part}: {told}."] if told else []


def roots(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those that are no part of another."""
    parts = {id(one) for module in modules for one in module._modules.values()}
    return [module for module in modules if id(module) not in parts]
