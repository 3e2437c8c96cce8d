"""A census of what is alive when memory runs out: every tensor and every large object, by who holds it.

One walk from the user's variables, of the failed functions too, and one through autograd's operations. Each piece of
memory X that leads to it first.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from forgather_mem.errors import missing, ours
from forgather_mem.heap.autograd import is_running_sum, number_of, operations_of, saved_by
from forgather_mem.heap.containers import PLAIN
from forgather_mem.heap.failed_call import calls_module
from forgather_mem.heap.holder_names import names_of
from forgather_mem.heap.object_size import array_bytes, atoms_of, is_array, is_tensor, is_torch
from forgather_mem.heap.owner_paths import has_attributes, in_peoples_words
from forgather_mem.heap.reachable import MANY, MAX_NODES, SAMPLED, ReachableGraph
from forgather_mem.probes.tensors import StorageKey, storages_in, storages_of, values_of
from forgather_mem.source.bytecode import names_on_line, uses_again
from forgather_mem.source.container_code import adding_lines, is_joined
from forgather_mem.source.frame_variables import all_frames, frame_variables
from forgather_mem.source.source_lines import is_user_class, is_user_file, line_name

if TYPE_CHECKING:
    import torch
    from torch.autograd.graph import Node

Kind = Literal["object", "copy", "batch", "activations", "earlier", "untrained", "gradients", "state", "due", "vain"]
OF_GRADIENT = "graph of a gradient"  # and of what was made of it, by its name: of the pass that runs
_Failed = Sequence[TracebackType]
_SIZED = frozenset({"array", "builtins", "_io", "collections"})  # others' `__sizeof__` may do anything


@dataclass(frozen=True, slots=True)
class CensusLimits:
    """How far the census looks; it runs once, when the training is over.

    Set on 19 scripts of our own, on which it took 11 to 60 ms; twelve by others changed none of it.

    Attributes:
        budget_s: CPU seconds of the walk.
        piece_bytes: A single object below this does not count, if it is no tensor and no array.
        named_frac: Of all that is held; what one owner holds, below this, is not named.
        copy_frac: Of the model's bytes, and of its own; an object that has so many in tensors of the same sizes is a
            copy of it. So it is with the optimizer's state where that has tensors of other sizes, as numbers of steps.
        our_references: To an object that one variable holds, beside that variable.
    """

    budget_s: float = 1.0
    piece_bytes: int = 2**10
    named_frac: float = 0.02
    copy_frac: float = 0.9
    our_references: int = 4


_LIMITS = CensusLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one owner holds. Plain text and numbers.

    Attributes:
        name: The owner, as people write it: "`outputs` of evaluate()", "`KeepsCopies.copies`"; of an untrained graph
            the model; of the activations what joins them where a parameter is used more than once. Else empty.
        kind: An "object"; a "copy" of the model; the "batch"; "activations" of the pass that runs; graphs of "earlier"
            passes; graphs of a model that is "untrained": no optimizer has its parameters; "gradients" of another model
            than the given one; the "state" of another optimizer; a gradient that is "due", of which each use of
            its parameter makes one before they are added; gradients of an untrained model, made in "vain".
        num_bytes: What counts for it; of gradients made in vain with those that are still to come.
        collects: Whether it is a list or another container of the user's, not one tensor or array.
        num_items: Of a list its length; 0 if it is none. Of a pending gradient the number of uses.
        num_passes: Of graphs: how many passes of this step they are of; 0 for earlier steps, too. Of activations: how
            often each parameter is used in what one backward pass will go through; 0 where no graph keeps any.
        is_unused: Whether only variables hold it that no code that runs reads again.
        is_read: Whether the line that failed reads it.
        grows: Whether a function that was running adds to it.
        added_at: The first line that adds to it, "train.py:41"; empty where none is known.
        is_joined: Whether the user's code makes one of all that is in it.
        copied: Of a copy, by the sizes of its tensors: what it is one of.
    """

    name: str = ""
    kind: Kind = "object"
    num_bytes: int = 0
    collects: bool = False
    num_items: int = 0
    num_passes: int = 0
    is_unused: bool = False
    is_read: bool = False
    grows: bool = False
    added_at: str = ""
    is_joined: bool = False
    copied: str = "a copy of the model"

    @property
    def part(self) -> str:
        """What it is called among what is in use.

        >>> Holding(name="`total`", kind="earlier", num_passes=3).part
        'graphs of 3 earlier passes in `total`'
        """
        passes = f"{self.num_passes:,} earlier pass{'es' * (self.num_passes > 1)}"
        of = passes if self.num_passes else "earlier steps"
        words = {
            "copy": f"{self.copied},",
            "earlier": f"graphs of {of} in",
            "untrained": "graph of",
            "gradients": "gradients of",
            "state": "optimizer state of",
            "vain": "gradients that no optimizer takes, of",
        }
        name = "" if self.kind == "activations" else self.name
        return f"{words.get(self.kind, '')} {name}".strip() or {"batch": "the batch"}.get(self.kind, self.kind)


def take_census(
    failed: _Failed,
    model: object = None,
    optimizer: object = None,
    passes: Sequence[int] = (),
    on_host: bool = True,
    in_step: bool = True,
) -> list[Holding]:
    """What is held beside parameters, gradients and optimizer state, the largest first; what there was memory for.

    Args:
        failed: The traceback's entries, outermost first.
        model, optimizer: Those being trained: what is theirs is left out.
        passes: The numbers of autograd's operations at the beginnings of the passes that may still have a graph.
        on_host: Whether the host's memory ran out; else that of the devices counts alone.
        in_step: Whether a backward pass may follow.
    """
    census = _Census(failed, model, optimizer, passes, on_host, in_step)
    try:
        census.take()
        return sorted(census.found(), key=lambda held: -held.num_bytes)
    except ours(MemoryError):
        return []
    finally:
        census.walk.forget()


class _Census:
    def __init__(
        self, failed: _Failed, model: Any, optimizer: object, passes: Sequence[int], on_host: bool, in_step: bool
    ) -> None:
        self._failed, self._passes, self._model, self._optimizer = failed, passes, model, optimizer
        self._frames = [entry.tb_frame for entry in failed]
        self._on_host, self._in_step = on_host, in_step
        self._own, self._state = storages_in(model), storages_in(getattr(optimizer, "state", None))
        gradients = [parameter.grad for parameter in model_parameters(model)]
        self._known: set[object] = {*self._own, *self._state, *storages_in(gradients)}
        self._parts: Counter[tuple[Kind, str]] = Counter()
        self._of_pass: defaultdict[tuple[Kind, str], set[int]] = defaultdict(set)
        self._groups: defaultdict[int, Counter[object]] = defaultdict(Counter)  # by position, the bytes of each piece
        self._vain: dict[Node, str] = {}
        self._uses = Counter[int]()  # of parameters, by id, in what the running backward pass goes through
        self._joins, self._num_joined = "", 1  # what goes through each parameter most often in this step, and how often
        self.walk = ReachableGraph()

    def take(self) -> None:
        self.walk = ReachableGraph.walk(_LIMITS.budget_s, self._frames)
        nodes = self.walk.nodes
        optimizers = {at: node for at, node in enumerate(nodes) if is_torch(node, "optim", "Optimizer")}
        for position, one in optimizers.items():
            if one is not self._optimizer:
                self._add_beside("state", position, getattr(one, "state", None), has_own=self._optimizer is None)
        several = *optimizers.values(), self._optimizer
        trained = {id(one) for of in several for group in getattr(of, "param_groups", ()) for one in group["params"]}
        self._parts["batch", ""] = sum(self._new_of(storages_in(self._batch())).values())
        self._parts["activations", ""] = sum(self._new_of(storages_in(self._within_pass())).values())
        untrained = self._models(trained)
        self._count_graphs(untrained, trained)
        leaves = [one for one in nodes if id(one) in untrained and one.requires_grad and one.is_cpu == self._on_host]
        made = {untrained[id(one)] for one in leaves if one.grad is not None}
        self._in_vain = {name: sum(one.nbytes for one in leaves if untrained[id(one)] == name) for name in made}
        times, items = [1.0] * len(nodes), [-1] * len(nodes)
        for position in range(len(nodes)):
            above = self.walk.parent(position)
            if above >= 0:  # tensors and arrays in a long list are all counted
                stands_for_others = self._is_sampled(above) and not is_array(nodes[position])
                times[position] = times[above] * (len(nodes[above]) / SAMPLED if stands_for_others else 1.0)
                items[position] = position if stands_for_others else items[above]
        shared = self._shared(items)
        # What only a variable of its own leads to comes last: a container is a better name than a view of what is in it
        for position in sorted(range(len(nodes)), key=lambda position: self._owner(position) == position):
            for key, size in self._pieces(nodes[position], self._is_sampled(position), times[position]):
                if key not in self._known:
                    self._known.add(key)
                    self._groups[self._owner(position)][key] += int(size * (1.0 if key in shared else times[position]))

    def _shared(self, items: Sequence[int]) -> set[object]:
        """Memory that several items of long containers have in common: rows may be views of one tensor."""
        first: dict[object, int] = {}
        inner = (position for position, item in enumerate(items) if item >= 0)
        pieces = ((items[position], self._pieces(self.walk.nodes[position], False)) for position in inner)
        return {key for item, of_item in pieces for key, _ in of_item if first.setdefault(key, item) != item}

    def found(self) -> Iterator[Holding]:
        """The owners, once all is counted."""
        for (kind, name), size in self._parts.items():
            graphs = self._of_pass[kind, name]
            passes = len(graphs) if kind == "earlier" and 0 not in graphs else 0
            if kind == "activations" and graphs:
                name, passes = self._joins, self._num_joined
            if size:
                yield Holding(name=name, kind=kind, num_bytes=size, num_passes=passes)
        yield from (Holding(name=name, kind="vain", num_bytes=size) for name, size in self._in_vain.items())
        for name, one in self._model.named_parameters() if self._uses and self._model is not None else ():
            if one.grad is None and self._uses[id(one)] > 1:
                yield Holding(name=f"`{name}`", kind="due", num_bytes=one.nbytes, num_items=self._uses[id(one)])
        sizes = {position: sum(pieces.values()) for position, pieces in self._groups.items()}
        first: dict[str, int] = {}  # parts of a model, of one class, have one name for what each of them keeps
        for position in sorted(sizes, key=lambda at: -sizes[at])[:MANY]:
            if (same := first.setdefault(self._name(position), position)) != position:
                sizes[same] += sizes.pop(position)
                self._groups[same] |= self._groups[position]
        least = _LIMITS.named_frac * (sum(sizes.values()) + self._parts.total())
        for position, size in sizes.items():
            if size >= least:
                yield self._held(position, size, self._groups[position])
        yield Holding(name="small objects", num_bytes=sum(size for size in sizes.values() if size < least))

    def _held(self, position: int, size: int, pieces: Counter[object]) -> Holding:
        thing = self.walk.nodes[position]
        sizes, own = Counter(pieces.values()), Counter(self._own.values())
        whole = own + Counter(self._state.values())
        has_state = len(whole) > len(own) and whole.keys() <= sizes.keys()
        alike, whole = Counter({each: sizes[each] for each in whole}), whole if has_state else own
        is_all = bool(own) and own.keys() <= sizes.keys() and _total(alike & whole) >= _LIMITS.copy_frac * _total(whole)
        times = round(_total(alike) / max(1, _total(whole)))
        copies = "a copy" if times < 2 else f"as much as {times} copies"
        # A Trainer that the script has given no name holds its data set all the same
        is_users = any(is_user_class(type(one)) for one in self.walk.way(position))
        collects = (is_users or not self.walk.is_librarys_variable(position)) and _is_container(thing)
        names = names_of(self.walk, position, self._frames) if collects else []
        adding = [at for name in names for at in adding_lines(name, isinstance(thing, list))]
        running = ((one.f_code.co_filename, line) for one in self._frames for *_, line in one.f_code.co_lines())
        return Holding(
            name=self._name(position),
            kind="copy" if is_all and _total(alike) >= _LIMITS.copy_frac * size else "object",
            copied=f"{copies} of the model" + " and the optimizer's state" * has_state, num_bytes=size,
            collects=collects, grows=any(line in adding for line in running),
            added_at=line_name(*adding[0]) if adding else "", is_joined=any(map(is_joined, names)),
            num_items=len(thing) if isinstance(thing, list | deque) else 0, is_unused=self._is_unused(thing),
            is_read=self._is_read(thing),
        )  # fmt: skip

    # ---- the training itself ----

    def _batch(self) -> list[object]:
        """What the outermost module was called with, and what libraries hand to the user's functions."""
        found: list[object] = []
        by_library = False
        for entry in self._failed:
            frame, variables = entry.tb_frame, frame_variables(entry.tb_frame)
            if calls_module(frame):
                return [*found, variables.get("args"), variables.get("kwargs")]
            is_users = is_user_file(frame.f_code.co_filename)
            if is_users and by_library:
                names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
                found += [value for value in map(variables.get, names) if _is_container(value) or is_tensor(value)]
            by_library = not is_users
        return found

    def _within_pass(self) -> list[object]:
        """The variables of what the outermost module has called: masks, and results that no graph keeps."""
        calls = itertools.dropwhile(lambda one: not calls_module(one.tb_frame), self._failed)
        called = [entry.tb_frame for entry in itertools.islice(calls, 1, None)]
        values = [value for frame in called for value in frame_variables(frame).values()]
        return [value for value in values if is_tensor(value) and not is_torch(value, "nn", "Parameter")]

    def _models(self, trained: set[int]) -> dict[int, str]:
        """The names of what no optimizer trains, by the ids of its parameters; counts models beside the trained one."""
        names: dict[int, str] = {}
        own = self._model
        for name, part in own.named_children() if hasattr(own, "named_children") else ():
            names |= dict.fromkeys(map(id, part.parameters()), f"`{type(own).__name__}.{name}`")
        modules = {at: _modules_of(node) for at, node in enumerate(self.walk.nodes) if is_torch(node, "nn", "Module")}
        covered = {id(inner) for found in modules.values() for inner in found[1:]} | set(map(id, _modules_of(own)))
        for position, inner in modules.items():
            node = self.walk.nodes[position]
            if not inner or not covered.isdisjoint(map(id, inner[:1])) or any(one is own for one in inner):
                continue
            owner = self._owner(position)
            self._groups[owner].update(self._new_of(storages_in(node)))
            self._add_beside("gradients", position, [one.grad for one in node.parameters()], has_own=own is None)
            names |= dict.fromkeys(map(id, node.parameters()), self._name(owner))
        return {key: name for key, name in names.items() if key not in trained} if trained else {}

    def _add_beside(self, kind: Kind, position: int, value: object, *, has_own: bool) -> None:
        """What belongs to this node, which is not the given one: one that a container keeps is the container's."""
        owner, new = self._owner(position), self._new_of(storages_in(value))
        if has_own or owner == position:
            self._parts[kind, self._name(owner)] += sum(new.values())
        else:
            self._groups[owner].update(new)

    # ---- graphs ----

    def _unheard_passes(self) -> list[int]:
        """Where passes began that nobody has heard: with each loss that a container keeps one was over."""
        kept = (one for at, one in enumerate(self.walk.nodes) if is_tensor(one) and self._owner(at) != at)
        return [0, *sorted((number_of(one.grad_fn) or 0) + 1 for one in kept if one.numel() == 1 and one.grad_fn)]

    def _count_graphs(self, untrained: Mapping[int, str], trained: set[int]) -> None:
        """What the operations keep whose results are alive: of the running pass first, then the oldest; lists' first.

        Of the same step, what leads to the pass that runs is a part of it; so is what one variable holds of another
        pass, as the second of two towers, unless that is a sum over passes, or has been gone back through.
        """
        self._passes = self._passes or self._unheard_passes()
        seen: set[object] = set()
        makes_graph = any(frame_variables(frame).get("create_graph") is True for frame in self._frames)
        ages = {
            position: self._pass_of(node.grad_fn)
            for position, node in enumerate(self.walk.nodes)
            if is_tensor(node) and node.grad_fn is not None
        }
        for position in sorted(ages, key=lambda at: (ages[at] < len(self._passes), ages[at], self._owner(at) == at)):
            tensor, owner = self.walk.nodes[position], self._owner(position)
            is_running = ages[position] == len(self._passes)
            operations = list(operations_of(tensor.grad_fn, seen))
            leaves = [getattr(step, "variable", None) for one in operations for step, _ in one.next_functions]
            has_gradients = any(getattr(leaf, "grad", None) is not None for leaf in leaves)
            is_sum, is_over = is_running_sum(tensor.grad_fn), tensor.numel() == 1 and has_gradients
            of_step = is_running or (self._in_step and owner == position and not is_sum and not is_over)
            if is_running and tensor.numel() == 1:  # a loss; a sum in a model joins no passes
                self._count_uses(tensor, owner, trained, is_sum)
            own = dict(storages_of(tensor))  # the last operation's, too
            kept = [saved_by(operation) for operation in operations] + [own.items()] * is_running
            is_second = is_running and makes_graph
            for operation, storages in zip([*operations, tensor.grad_fn], kept, strict=False):
                is_second |= operation.name().count("Backward") > 1  # a backward pass has made it, or what is below it
                number, vain = self._pass_of(operation), self._vain_model(operation, untrained)
                in_pass = number == len(self._passes) or (of_step and number > 0)
                kind: Kind = "untrained" if vain else "activations" if in_pass else "earlier"
                key = kind, vain or (self._name(owner) if kind == "earlier" else "")
                key = ("object", OF_GRADIENT) if is_second and kind == "activations" else key
                self._vain[operation] = vain
                # What the tensor itself has stays without its graph
                beyond = {one: size for one, size in storages if kind != "earlier" or one not in own}
                if new := self._new_of(beyond):
                    self._parts[key] += sum(new.values())
                    self._of_pass[key].add(number)

    def _count_uses(self, loss: torch.Tensor, owner: int, trained: set[int], is_sum: bool) -> None:
        # Of earlier steps nothing is joined: their losses were gone back through, or are kept with their graph
        of_this = (one for one in operations_of(loss.grad_fn, set()) if self._pass_of(one) or not self._passes)
        steps = [(getattr(one, "variable", None), step) for step in of_this for one, _ in step.next_functions]
        # Each pass has the same operations
        uses = Counter((id(leaf), step.name()) for leaf, step in steps if id(leaf) in trained)
        self._uses |= Counter(id(leaf) for leaf, _ in steps)
        if is_sum and (times := min(uses.values(), default=0)) > self._num_joined:
            self._joins, self._num_joined = self._name(owner), times

    def _pass_of(self, operation: Node) -> int:
        """The number of the pass, 0 for one of an earlier step."""
        return bisect.bisect_right(self._passes, number_of(operation) or 0)

    def _vain_model(self, operation: Node, untrained: Mapping[int, str]) -> str:
        """The model that no optimizer trains, if a backward pass through this operation reaches nothing else."""
        leaf = getattr(operation, "variable", None)
        if leaf is not None:
            return untrained.get(id(leaf), "")
        below = [self._vain.get(one, "") for one, _ in operation.next_functions if one is not None]
        return below[0] if below and all(below) else ""

    def _counts(self, key: StorageKey) -> bool:
        return (getattr(key[0], "type", "") == "cpu") == self._on_host

    # ---- variables ----

    def _new_of(self, storages: Mapping[StorageKey, int]) -> dict[StorageKey, int]:
        """The storages that are not known yet; they are known then."""
        new = {key: size for key, size in storages.items() if key not in self._known and self._counts(key)}
        self._known.update(new)
        return new

    def _pieces(self, node: object, all_items: bool, times: float = 1.0) -> Iterator[tuple[object, float]]:
        """The memory of a node, and of what it holds that is no node: texts, numbers, and items that the walk left out.

        One that stands for others counts from a smaller size on. Of a number that several hold each has a part.
        """
        if is_tensor(node):
            yield from (one for one in storages_of(node) if self._counts(one[0]))
            return
        if not self._on_host:
            return
        held = node if _is_container(node) else gc.get_referents(node)
        step = max(1, len(held) // MAX_NODES)  # no copy is made of a very long one
        every = itertools.chain(held, dict.values(held)) if isinstance(held, dict) else held
        values = [*itertools.islice(every, None, None, step)]
        base = getattr(node, "base", None) if (size := array_bytes(node)) else None
        if not size:
            own = sys.getsizeof(node) if type(node).__module__ in _SIZED else 0
            size = own + int(step * atoms_of(values, 4 * MAX_NODES // len(self.walk.nodes))[0])
        if size * times >= _LIMITS.piece_bytes:
            yield id(node if base is None else base), size
        for one in values:
            if type(one) in (bytes, str) and sys.getsizeof(one) >= _LIMITS.piece_bytes:
                yield id(one), sys.getsizeof(one) * step
            elif all_items and is_array(one):
                yield from ((key, part * step) for key, part in self._pieces(one, False))

    def _is_sampled(self, position: int) -> bool:
        thing = self.walk.nodes[position]
        return _is_container(thing) and len(thing) > MANY

    def _owner(self, position: int) -> int:
        """The position of what is named for a node: its container, or one whose items are objects that hold such."""
        walk = self.walk
        while True:
            above = walk.parent(position)
            while above >= 0 and self._is_plain(above):
                position, above = above, walk.parent(above)
            instance = walk.parent(above) if above >= 0 and walk.is_namespace(above) else above
            holder = walk.parent(instance) if instance >= 0 else -1
            if holder < 0 or not self._is_plain(holder) or not _is_of_one_class(walk.nodes[holder]):
                return position
            position = holder

    def _is_plain(self, position: int) -> bool:
        """Whether it is a container without a name of its own for what is in it."""
        walk = self.walk
        return isinstance(walk.nodes[position], PLAIN) and not (walk.is_namespace(position) or walk.is_module(position))

    def _name(self, position: int) -> str:
        return in_peoples_words(self.walk.holder(position))

    def _is_read(self, thing: object) -> bool:
        """Whether the innermost line of the user's names a variable that is this."""
        users = [entry for entry in self._failed if is_user_file(entry.tb_frame.f_code.co_filename)]
        read = [(frame_variables(one.tb_frame), names_on_line(one.tb_frame.f_code, one.tb_lasti)) for one in users[-1:]]
        return any(values.get(name) is thing for values, names in read for name in names)

    def _is_unused(self, thing: object) -> bool:
        """Whether only variables hold it, and no code that runs, or that is in its module, reads one of them again."""
        positions = {id(entry.tb_frame): (entry.tb_frame, entry.tb_lasti) for entry in self._failed}
        positions |= {id(frame): (frame, frame.f_lasti) for frame in all_frames() if id(frame) not in positions}
        number = 0
        for frame, position in positions.values():
            if not is_user_file(frame.f_code.co_filename):
                continue
            for name, value in frame_variables(frame).items():
                if value is thing:
                    number += 1
                    if name in names_on_line(frame.f_code, position) or uses_again(frame.f_code, position, name):
                        return False
        value = None  # it held the last of them
        is_unused = number > 0 and sys.getrefcount(thing) <= number + _LIMITS.our_references
        return is_unused and not self._has_other_holders(thing)

    def _has_other_holders(self, thing: object) -> bool:
        """Whether something else holds an item of this container, too, as a slice of a list does."""
        items: Any = thing.values() if isinstance(thing, dict) else thing
        item = next(iter(items), None) if isinstance(thing, PLAIN) else None
        holders = gc.get_referrers(item) if gc.is_tracked(item) else []
        return any(one is not thing and one is not self.walk.nodes and _is_container(one) for one in holders)


def model_parameters(model: Any) -> list[torch.nn.Parameter]:
    """Those of a model; none where there is no model."""
    return list(model.parameters()) if hasattr(model, "parameters") else []


def _total(sizes: Counter[int]) -> int:
    return sum(count * size for size, count in sizes.items())


def _modules_of(module: Any) -> list[object]:
    """Those in a module; none of one that is only being made."""
    with missing(AttributeError):
        return list(module.modules())
    return []


def _is_container(thing: object) -> TypeGuard[Collection[object]]:
    """Whether it is a list or another container of Python's, not of a class of somebody's own."""
    return issubclass(type(thing), PLAIN) and type(thing).__module__ in ("builtins", "collections")


def _is_of_one_class(container: Collection[object]) -> bool:
    """Whether several objects of one class with attributes are in it."""
    items = (values_of(container) if isinstance(container, dict) else list(container))[:MANY]
    return len(items) > 1 and len({type(item) for item in items}) == 1 and has_attributes(items[0])
