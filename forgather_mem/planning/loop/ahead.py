"""The course of a planned training: its phases, and what comes later in it, as every so many batches.

Where enough is planned a fork of the training looks ahead. Calls of models whose sizes are known are not made again in
it: results of the same sizes take their place. Backward passes and optimizers do nothing. So a batch takes two
milliseconds, and counters and random numbers of the script are what they will be. Where something is new, as a larger
input, an evaluation, or more that is kept, the fork tells the step; the training itself then runs on to there in the
same way, and plans it. All of it is set for good: it is called in a process that plans and then ends.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary, WeakSet, finalize

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from forgather_mem.heap.autograd import operations_of
from forgather_mem.planning.batches import PlannedShape
from forgather_mem.planning.isolation.child import forked
from forgather_mem.planning.known_operations import tensors_among
from forgather_mem.planning.loop.notes import Note
from forgather_mem.planning.loop.rounds import not_through
from forgather_mem.planning.private_state import around_passes, surround
from forgather_mem.planning.ranks import like_shard
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import with_callers
from forgather_mem.system.tracing import is_traced

# A guess: some 1,000 steps of small models, in 2 s. The fork has these, and as many as the planned rounds had
_MOST_OPERATIONS = 20_000
_OF_CALL = 10  # operations, for the time that a call takes which is not made: a guess
_MOST_COPIED_BYTES = 2**20
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Tensor)
Call: TypeAlias = Callable[..., object]


class Ahead:
    """Of one training, from now on.

    Args:
        loop: Told of it: of modules that no other has called, passes that begin and have ended, and steps; its log of
            phases, gradients and the state of optimizers.
        models: That are trained.

    Attributes:
        is_stepping: Whether an optimizer is.
        has_looked: Whether enough was planned once.
        skips: Whether what is known does no work.
        repeats: Whether a batch of an evaluation comes that is as those before it: then its calls do no work.
        has_all: Whether the fork has come to the end of the training, or of what it looks at.
        steps: Those of optimizers so far.
    """

    def __init__(self, loop: Any, models: Iterable[nn.Module]) -> None:
        self._loop, self._log, self._models = loop, loop.log, models
        # What a call has made
        self._known = WeakKeyDictionary[nn.Module, dict[Hashable, _Result]]()
        # By which modules are known; of one kind those by which some were that are gone
        self._keys, self._gone = WeakKeyDictionary[nn.Module, object](), defaultdict[Hashable, list[object]](list)
        # Of each kind of call the largest inputs, of which none has more of all, and the most that was alive
        self._largest, self._most = defaultdict[Hashable, list[tuple[int, ...]]](list), Counter[Hashable]()
        self._news: dict[Hashable, int] = {}  # of what is new, the step
        self._graded = WeakTensorKeyDictionary()  # weights to which a pass has left gradients
        self._kinds, self._has_begun = set[str](), WeakSet[Optimizer]()  # optimizers that have stepped
        self._taken: list[tuple[dict[str, object], object]] = []  # from an optimizer that does nothing
        # It may have begun in a step
        callers = with_callers(sys._getframe())
        self.is_stepping = any(isinstance(frame_variables(one).get("self"), Optimizer) for one in callers)
        self._is_called = self.has_looked = self.skips = self.repeats = self.has_all = False
        self.steps = self._teller = self._most_bytes = self._until = 0
        self._todo, self._planned_to = list[int](), -1
        surround("torch.nn:Module.__call__", self._called, loop.notes)
        around_passes(self._passed, loop.notes)
        self._saved: dict[str, _Result] = {}  # by file
        surround("torch:save", self._save, loop.notes)
        surround("torch:load", self._load, loop.notes)
        register_optimizer_step_pre_hook(self._stepping)
        register_optimizer_step_post_hook(self._stepped)

    def is_through(self, is_enough: bool) -> bool:
        """Whether all is planned; asked where a batch begins.

        Args:
            is_enough: Whether it is, of what has come.
        """
        if self.skips or not is_enough or self.steps <= self._planned_to:
            return False
        if not self.has_looked:
            self.has_looked = True
            self._look()
        self.skips = bool(self._todo) or self._teller > 0
        self._resume()
        return not self.skips and self.steps > self._planned_to

    def tell(self, has_all: bool, most_steps: int = 0, fails: bool = False) -> None:
        """End the fork, if it is this process; it may have come to the end of so many steps, which are enough.

        What fails in it is new: the training itself is to show whether it does.
        """
        if self._teller:
            told = sorted({*self._news.values(), *[self.steps] * fails}), has_all, most_steps, self._loop.answers.known
            with os.fdopen(self._teller, "wb") as file:
                file.write(pickle.dumps(told))
            os._exit(0)

    def _look(self) -> None:
        reader, writer = os.pipe()
        if not forked():
            self._teller = writer
            self._news.clear()
            operations = self._loop.answers.operations
            self._until = operations + max(operations, _MOST_OPERATIONS)
            return
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            self._todo, self.has_all, most_steps, known = pickle.loads(file.read() or pickle.dumps(([], False, 0, {})))
        self._loop.answers.known.update(known)
        os.wait()
        if most_steps:
            self._loop.notes.append(not_through(f"{most_steps:,} steps."))

    def _called(self, call: Call, module: nn.Module, *args: object, **keywords: object) -> object:
        is_inner, making = self._is_called or is_traced(), self._log.making
        self._is_called, self._log.making = True, self._loop.part_of_call(module, (args, keywords))
        try:
            if is_inner:
                return call(module, *args, **keywords)
            self._loop.called(module, args, keywords)
            if self._log.phase == "backward":  # checkpointing calls it again
                return call(module, *args, **keywords)
            return self._met(call, module, args, keywords)
        finally:
            self._is_called, self._log.making = is_inner, making
            # It plays, or chooses: what follows is no evaluation
            plays = not is_inner and module.training and any(one.numel() for one in module.parameters())
            if plays and self._log.phase == "evaluate":
                self._log.batch = PlannedShape()
                self._log.begin("data")

    def _met(self, call: Call, module: nn.Module, args: Sequence[object], keywords: Mapping[str, object]) -> object:
        given = tree_leaves((args, keywords))
        trained = sum(one.requires_grad for one in module.parameters())
        autocasts = torch.is_autocast_enabled("cpu")
        state = self._key_of(module), torch.is_grad_enabled(), module.training, autocasts, trained
        kind = state, *((one.dtype, one.requires_grad) if isinstance(one, torch.Tensor) else type(one) for one in given)
        # Fewer rows that are longer may take more, as in attention: bytes, and those as often as a row is long
        each = [(0, 0), *((one.nbytes, one.nbytes * max(one.shape[1:], default=1)) for one in tensors_among(given))]
        size, largest = tuple(map(sum, zip(*each, strict=True))), self._largest[kind]
        if not any(one[0] >= size[0] and one[1] >= size[1] for one in largest):
            for less in [one for one in largest if one[0] <= size[0] and one[1] <= size[1]]:
                largest.remove(less)
                self._news.pop((kind, less), None)
            largest.append(size)
            self._news[kind, size] = self.steps
        # A thousandth more is new, not the few numbers that a script keeps of each step: a guess
        alive_bytes = self._log.alive_bytes
        if 1000 * (alive_bytes - self._most[kind]) > alive_bytes:
            self._most[kind] = alive_bytes
            self._news[kind] = self.steps
        if not all(isinstance(one, _PLAIN) for one in given):
            return call(module, *args, **keywords)
        key = kind, *(one.shape if isinstance(one, torch.Tensor) else one for one in given)
        known = self._known.setdefault(module, {})
        # What `fully_shard` has gathered stays until the next call
        repeats = self.repeats and not torch.is_grad_enabled() and not hasattr(module, "_get_fsdp_state")
        if key in known and (self.skips or repeats):
            self._spend()
            return known[key].again(self._remade(module, given, known[key].tensors))
        settings = _settings_of(module)
        result = call(module, *args, **keywords)
        if key not in known and settings == _settings_of(module):  # one that counts may do something else another time
            with suppress(Exception):  # it is of a kind that can't be made again
                known[key] = _Result(result, lambda one: isinstance(one, torch.Tensor | nn.Module))
        return result

    def _key_of(self, module: nn.Module) -> object:
        """By which it is known: one that is made anew at each step, as a loss, is the one before it, which is gone."""
        if module not in self._keys:
            gone = self._gone[(*map(type, module.modules()), *_settings_of(module))]
            self._keys[module] = key = gone.pop() if gone else object()
            finalize(module, gone.append, key)
        return self._keys[module]

    def _remade(self, module: nn.Module, given: Iterable[object], kept: Sequence[object]) -> list[object]:
        made: list[object] = [self._made(one) if isinstance(one, torch.Tensor) else one for one in kept]
        places = [place for place, one in enumerate(kept) if isinstance(one, torch.Tensor) and one.requires_grad]
        if places and torch.is_grad_enabled():
            weights = [one for one in module.parameters() if one in self._graded]
            passed = [one for one in given if isinstance(one, torch.Tensor) and one.requires_grad]
            leaf = torch.empty(0, requires_grad=True)  # where there is nothing else the results are in no graph
            in_graph = _NotMade.apply(self._seen, weights, [made[place] for place in places], leaf, *passed)  # type: ignore[no-untyped-call]
            for place, one in zip(places, in_graph, strict=True):
                made[place] = one
        return made

    def _made(self, like: torch.Tensor) -> torch.Tensor:
        return self._seen(like) if like.is_meta else like.clone()

    def _seen(self, like: torch.Tensor) -> torch.Tensor:
        made = like_shard(like, self._loop.mode.unknown)
        self._log.saw(made)
        return made

    def _save(self, save: Call, what: object, file: object, *args: object, **keywords: object) -> None:
        """What is written is lost, but for what it consists of."""
        if isinstance(file, str | os.PathLike):
            with suppress(Exception):  # it can't be written: that is the script's own failure
                self._saved[os.path.abspath(file)] = _Result(
                    what, lambda one: isinstance(one, torch.Tensor) and not isinstance(one, FakeTensor)
                )
        save(what, file, *args, **keywords)

    def _load(self, load: Call, file: object, *args: object, **keywords: object) -> object:
        path = os.path.abspath(file) if isinstance(file, str | os.PathLike) else None
        if path not in self._saved:
            return load(file, *args, **keywords)
        saved = self._saved[path]
        return saved.again([self._made(one) for one in saved.tensors if isinstance(one, torch.Tensor)])

    def _spend(self) -> None:
        answers = self._loop.answers
        answers.operations += _OF_CALL
        if self._teller and answers.operations > self._until:
            self.tell(True, self.steps)

    def _passed(self, backward: Call, *args: object, **keywords: object) -> object:
        is_outer = self._log.phase != "backward"  # checkpointing calls it again, inside
        if is_outer:
            self._loop.passes()
        self._log.begin("backward")
        if self.skips and not keywords.get("accumulate_grad"):
            result: object = tuple(self._seen(one).requires_grad_(bool(args[3])) for one in args[4])  # type: ignore[attr-defined]
        else:
            result = self._backward(backward, *args, **keywords)
        if is_outer:
            # Its parameters may be sharded; gradients of one that has no optimizer may be copied to what has
            self._saw_gradients(one for model in {*self._models, *self._known} for one in model.parameters())
            self._log.begin("optimizer")
            self._loop.passed(bool(keywords.get("accumulate_grad")))
        return result

    def _backward(self, backward: Call, *args: object, **keywords: object) -> object:
        try:
            return backward(*args, **keywords)
        except RuntimeError:
            if not self.skips:
                raise
        # A call that is not made leaves the graph of an earlier one in attributes, and a fork can't go back through
        # any where autograd has threads: the weights get what that would leave
        for node in [one for output in tensors_among(args) for one in operations_of(output.grad_fn, set())]:
            leaf = getattr(node, "variable", None)
            for weight in getattr(node, "left", (None, ()))[1] if leaf is None else [leaf]:
                if weight.grad is None:
                    weight.grad = self._seen(weight)
        return None

    def _saw_gradients(self, weights: Iterable[torch.Tensor]) -> None:
        for weight in weights if not self.skips else ():
            if weight.grad is not None:
                self._log.saw(weight.grad, "gradients")
                self._graded[weight] = True

    def _stepping(self, optimizer: Optimizer, *_: object) -> None:
        self.is_stepping = True
        self._saw_gradients(weight for group in optimizer.param_groups for weight in group["params"])
        if self._log.phase != "backward":  # in the hook of a parameter it goes on
            self._log.begin("optimizer")
        for group in optimizer.param_groups if self.skips else ():
            self._taken.append((group, group["params"]))
            group["params"] = []

    def _stepped(self, optimizer: Optimizer, args: Sequence[object], keywords: Mapping[str, object]) -> None:
        self.is_stepping = False
        kind = type(optimizer).__name__
        if kind not in self._kinds:  # at first it may take less than what was before it
            self._kinds.add(kind)
            self._news[kind] = self.steps
        for group, weights in reversed(self._taken):  # those of one inside of another are empty
            group["params"] = weights
        self._taken.clear()
        if not self.skips:
            is_again = self._fill_history(optimizer)
            for tensor in tensors_among(list(optimizer.state.values())):
                self._log.saw(tensor, "optimizer")
            if is_again:  # its closure is called with all of it, too
                optimizer.step(*args[1:], **keywords)  # type: ignore[call-overload]
                return
        self._count()
        self._loop.stepped(optimizer)

    def _fill_history(self, optimizer: Optimizer) -> bool:
        """What an optimizer keeps of its last iterations, as LBFGS, is so much at some time; whether it was not yet."""
        most = int(optimizer.defaults.get("history_size", 0))
        lists = [one for state in optimizer.state.values() for one in state.values() if isinstance(one, list)]
        lacking = [one for one in lists if len(one) < most]
        begun = [one for one in lacking if one]
        for kept in begun:
            kept += [kept[-1].clone() for _ in range(most - len(kept))]
            note = Note(f"A history of an optimizer is planned full ({most:,} iterations).", "at most")
            self._loop.notes += [note] if note not in self._loop.notes else []
        is_first = optimizer not in self._has_begun  # the second iteration is the first to keep something
        self._has_begun.add(optimizer)
        return bool(begun or (lacking and is_first))

    def _count(self) -> None:
        """A step is through: that before something new begins to be planned."""
        self.steps += 1
        self._loop.answers.steps()
        if self._teller:
            if 1000 * (self._log.most_bytes - self._most_bytes) > self._log.most_bytes:
                if self._most_bytes:
                    self._news["bytes"] = self.steps - 1
                self._most_bytes = self._log.most_bytes
            self._log.most_bytes = self._log.alive_bytes
            self._spend()
        elif self.skips:
            self._resume()

    def _resume(self) -> None:
        """Plan again, if something new is a round away."""
        a_round = max(1, len(self._loop.rounds.optimizers))
        if self._todo and self.steps >= self._todo[0] - a_round:
            while self._todo and self._todo[0] <= self.steps + 2 * a_round:
                self._planned_to = self._todo.pop(0)
            self.skips = False
            self._loop.again()


def _settings_of(module: nn.Module) -> list[object]:
    return [one for part in module.modules() for one in vars(part).values() if isinstance(one, int | float | str)]


class _NotMade(torch.autograd.Function):
    """A call that is not made, in a graph: passes leave gradients to its weights, and to what it was given."""

    @staticmethod
    def forward(context: Any, seen: Call, weights: object, made: list[object], *given: torch.Tensor) -> object:
        context.left = seen, weights, [_blank(one) for one in given]
        return tuple(made)

    @staticmethod
    def backward(context: Any, *_: object) -> object:
        seen, weights, given = context.left
        for weight in weights:
            if weight.grad is None:
                weight.grad = seen(weight)
        return None, None, None, *map(seen, given)


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    """The same without its memory; values that are known are kept, if they are few."""
    with no_dispatch():
        if type(tensor) is torch.Tensor and tensor.nbytes < _MOST_COPIED_BYTES and not tensor.requires_grad:
            return tensor.clone()
        blank = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        return blank.requires_grad_(tensor.requires_grad)


class _Result:
    """What a call has returned, of any kind that can be pickled.

    Args:
        result: The same.
        is_apart: Whether something in it, a tensor or a module, is not pickled.

    Attributes:
        tensors: In it, and modules, which are the same again.
    """

    def __init__(self, result: object, is_apart: Callable[[object], bool]) -> None:
        self.tensors = list[torch.Tensor | nn.Module]()
        met = dict[int, tuple[object, int]]()  # by id: a `ModelOutput` has each as item and attribute

        def number_of(one: object) -> int | None:
            if is_apart(one) and id(one) not in met:
                met[id(one)] = one, len(self.tensors)
                self.tensors.append(_blank(one) if isinstance(one, torch.Tensor) else cast(nn.Module, one))
            return met[id(one)][1] if id(one) in met else None

        pickler = pickle.Pickler(file := io.BytesIO())
        pickler.persistent_id = number_of  # type: ignore[method-assign]
        pickler.dump(result)
        self._rest = file.getvalue()

    def again(self, tensors: Sequence[object]) -> object:
        """The same with these in place of its tensors."""
        unpickler = pickle.Unpickler(io.BytesIO(self._rest))
        unpickler.persistent_load = tensors.__getitem__  # type: ignore[method-assign]
        return unpickler.load()
