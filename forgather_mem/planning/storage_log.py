"""The log of a planned training: each storage when it is made and when it goes, with its size.

What a storage was for shows only later: a tensor made in a backward pass turns out to be a gradient. So sizes and
events are noted as they come, parts are named when they are known, at the latest when the storage goes.
"""

from __future__ import annotations

import weakref
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple

import torch

from forgather_mem.planning.batches import PlannedShape
from forgather_mem.source.source_lines import calling_place

OTHER_GRAPHS, EVALUATED, COPIES = "graphs of other models", "graphs of the evaluation", "copies"
_COPIED = {"parameters": "the model", "optimizer": "the optimizer's state"}


class Stretch(NamedTuple):
    """A phase of one step, from this event on; its batch has no rows where none is known."""

    first_event: int
    step: int
    phase: str
    batch: PlannedShape = PlannedShape()


class StorageRequest(NamedTuple):
    """A storage that is made.

    Attributes:
        step: 1 or 2.
        phase: As in `PhasePlan`.
        size: Its bytes.
        before_bytes: Of all tensors there were then.
        taken_bytes: What a process has taken of the system for those and it, where it was really made.
        is_refused: Whether a limit of this process, which nobody could raise, leaves no addresses for it.
    """

    step: int
    phase: str
    size: int
    before_bytes: int
    taken_bytes: int = 0
    is_refused: bool = False


class Kept(NamedTuple):
    """What one holder keeps from step to step.

    Attributes:
        name: The holder, as people write it.
        num_items: Of a list its length; 0 if it is none.
        num_bytes: Size of its storages.
        numbers: Those storages.
    """

    name: str
    num_items: int
    num_bytes: int
    numbers: Set[int]


class Trace(NamedTuple):
    """Storages as they are made and go, as in a `StorageLog`.

    Attributes:
        without_graph: The numbers of those that were made where autograd keeps no graph.
        kept: From step to step, beside the training's own, the most first.
        copies: Those that `copy.deepcopy` has made, by what they are copies of, and the line.
        joined: Those of graphs that are there when the same model is called again before a backward pass, by which of
            its calls that is: the 2nd or a later one.
        lines: Of the largest, where the user's code has made them: file and number.
    """

    events: Sequence[int] = ()
    sizes: Sequence[int] = ()
    stretches: Sequence[Stretch] = ()
    without_graph: Set[int] = frozenset()
    kept: Sequence[Kept] = ()
    copies: Mapping[str, Set[int]] = {}
    joined: Mapping[int, Set[int]] = {}
    lines: Mapping[int, tuple[str, int]] = {}

    def by_stretch(self) -> Iterator[tuple[Stretch, Sequence[int]]]:
        """Each phase with its events."""
        ends = [*(stretch.first_event for stretch in self.stretches[1:]), len(self.events)]
        ended = zip(self.stretches, ends, strict=True)
        return ((stretch, self.events[stretch.first_event : end]) for stretch, end in ended)

    def lasting(self) -> Trace:
        """The same without what goes while data is loaded: how that is made larger for a plan is not the training's.

        Nor is what has gone before the first step that is planned.
        """
        before = {event for stretch, events in self.by_stretch() if not stretch.step for event in events}
        short = set[int]()
        for stretch, events in self.by_stretch():
            inside = before if not stretch.step else set(events) if stretch.phase == "data" else ()
            short.update(event for event in events if ~event in inside)  # it has both
        return self.without(short)

    def without(self, numbers: Set[int]) -> Trace:
        """The same if these were never made."""
        still, stretches = array("q"), list[Stretch]()
        for stretch, events in self.by_stretch():
            stretches.append(stretch._replace(first_event=len(still)))
            still.extend(event for event in events if max(event, ~event) not in numbers)
        return self._replace(events=still, stretches=stretches)

    def replaced_bytes(self, new: Kept) -> int:
        """Size of what goes at once when all of this is made, and was there before the first of it was."""
        made = [at for at, event in enumerate(self.events) if event in new.numbers]
        gone = list[int]()
        for event in self.events[made[-1] + 1 :] if made else ():
            if gone and event >= 0:
                break
            gone += [~event] * (event < 0)
        return sum(self.sizes[one] for one in {*gone}.intersection(self.events[: made[0]] if made else ()))

    def grown_bytes(self) -> int:
        """How much more is there where the later half of the steps begin than where the first do; not of step 1."""
        begins, total, is_next = list[int](), 0, False
        for (_, step, phase, _), events in self.by_stretch():
            begins += [total] * (is_next and step > 1 and phase == "forward")
            is_next = phase == "optimizer" or (is_next and phase != "forward")
            total += sum(self.sizes[event] if event >= 0 else -self.sizes[~event] for event in events)
        half = len(begins) // 2
        return min(begins[half:]) - min(begins[:half]) if half else 0

    def made_at(self, step: int, phase: str) -> tuple[tuple[str, int], int] | None:
        """The line that has made the most of what is there at this phase's highest moment, and how much."""
        total, most, of_lines, found = 0, -1, Counter[tuple[str, int]](), None
        for stretch, events in self.by_stretch():
            for event in events:
                size = self.sizes[event] if event >= 0 else -self.sizes[~event]
                total += size
                if (line := self.lines.get(max(event, ~event))) is not None:
                    of_lines[line] += size
                if total > most and stretch[1:3] == (step, phase):
                    most, found = total, next(iter(of_lines.most_common(1)), None)
        return found

    def largest_bytes(self) -> int:
        """Of what is made."""
        return max((self.sizes[event] for event in self.events if event >= 0), default=0)

    def requests(self) -> Iterator[StorageRequest]:
        """The larger allocations, in order."""
        least = self.largest_bytes() // 1000  # smaller ones are no reason for a failure
        total = 0
        for (_, step, phase, _), events in self.by_stretch():
            for event in events:
                size = self.sizes[event] if event >= 0 else -self.sizes[~event]
                if size > least:
                    yield StorageRequest(step, phase, size, total)
                total += size


class StorageLog:
    """Storages seen so far, by number.

    Attributes:
        sizes: Bytes of each.
        parts: What each was for, where it is known. What a forward pass leaves behind are activations.
        events: The numbers of storages as they are made, and the complements (`~number`) as they go.
        stretches: The phases, in order.
        without_graph: The numbers of those that were made where autograd keeps no graph.
        making: What those are for that are made now, where it is known.
        batch: Of which they are, from the next phase on.
        kept: As in `Trace`, once it is known.
        alive_bytes, most_bytes: What there is now, and the most that there was.
        evaluates_with_graph: Whether a model was called so in an evaluation.
    """

    def __init__(self) -> None:
        self.alive_bytes = self.most_bytes = 0
        self.evaluates_with_graph = False
        self.sizes, self._made_in = array("q"), array("q")  # the latter: of each the number of its stretch
        self.without_graph: set[int] = set()
        self.parts: list[str | None] = []
        self.events, self.stretches = array("q"), [Stretch(0, 1, "data")]
        self.making: str | None = None
        self.batch = PlannedShape()
        self.kept: Sequence[Kept] = ()
        self._copies, self._joined = defaultdict[str, set[int]](set), defaultdict[int, set[int]](set)
        self._lines = dict[int, tuple[str, int]]()
        self._of_pass = set[int]()  # what is alive of that made since the last pass that was joined, or went back
        self._alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

    def saw(self, tensor: torch.Tensor, part: str | None = None) -> None:
        """A tensor that exists; its storage is counted once, whatever its views."""
        for one in (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,):
            self.saw_storage(getattr(one, "_local_tensor", one).untyped_storage(), part)

    def shares(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """The memory of one is that of the other in the training: whatever holds it still, it counts once."""
        storage = old.untyped_storage()
        known = self._alive.get(new.untyped_storage()._cdata)
        if known is not None:
            key = storage._cdata
            if key in self._alive:
                self._gone(key, self._alive[key][1])
            self._alive[key] = weakref.ref(storage, lambda _: self._alive.pop(key, None) and None), known[1]

    def copied(self, old: torch.Tensor, new: torch.Tensor, line: str) -> None:
        """At this line a copy is made."""
        (_, whole), (_, copy) = (self._alive.get(one.untyped_storage()._cdata, (None, -1)) for one in (old, new))
        name = _COPIED.get(self.parts[whole] or "") if min(whole, copy) >= 0 else None
        if name is not None and self.parts[copy] is None:
            self.parts[copy] = COPIES
            self._copies[f"{name} at {line}"].add(copy)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether its storage is one of these."""
        return getattr(tensor, "_local_tensor", tensor).untyped_storage()._cdata in self._alive

    def mark_lasting(self, part: str) -> None:
        """The storages of the step before the last, and older ones, that have no part: it is this one."""
        phases = [one.phase for one in self.stretches]
        of_last = len(phases) - 1 - phases[::-1].index("backward") if "backward" in phases else 0
        ended = max((at for at, phase in enumerate(phases[:of_last]) if phase == "optimizer"), default=-1)
        for number in (*self.alive_of(None).values(), *self.alive_of(COPIES).values()):
            if self._made_in[number] <= ended:
                self.parts[number] = part

    def alive_of(self, part: str | None) -> dict[int, int]:
        """The storages of this part, by `_cdata`."""
        return {key: at for key, (_, at) in self._alive.items() if self.parts[at] == part}

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage that has another size now, if it is one of these."""
        if storage._cdata in self._alive:
            self.saw_storage(storage)

    def saw_storage(self, storage: torch.UntypedStorage, part: str | None = None) -> None:
        """The same of a storage."""
        key, size = storage._cdata, storage.nbytes()
        known = self._alive.get(key)
        if known is not None and self.sizes[known[1]] != size:  # resized
            part = part or self.parts[known[1]]
            self._gone(key, known[1])
            known = None
        if known is None:
            number = len(self.sizes)
            self.sizes.append(size)
            self.parts.append(part or self.making)
            self._made_in.append(len(self.stretches) - 1)
            self.events.append(number)
            self._of_pass.add(number)
            if not torch.is_grad_enabled():
                self.without_graph.add(number)
            self.alive_bytes += size
            self.most_bytes = max(self.most_bytes, self.alive_bytes)
            self._alive[key] = weakref.ref(storage, partial(self._gone, key, number)), number
            # Of the largest only, since it takes some 50 us
            if part is None and 8 * size > self.most_bytes and (place := calling_place()) is not None:
                self._lines[number] = place
        elif part is not None and self.parts[known[1]] in (None, COPIES):
            self.parts[known[1]] = part

    def joins_passes(self, number: int) -> None:
        """A model is called so often since the last backward pass: the next goes through what there is since, too."""
        self._joined[number] |= {one for one in self._of_pass - self.without_graph if self.parts[one] is None}
        self._of_pass.clear()

    def begin(self, phase: str, step: int | None = None) -> None:
        """From now on it is this phase."""
        last = self.stretches[-1]
        now = Stretch(len(self.events), last.step if step is None else step, phase, self.batch)
        if now[1:] != last[1:]:
            self.stretches.append(now)
        if phase in ("backward", "optimizer"):
            self._of_pass.clear()

    @property
    def phase(self) -> str:
        """The phase that it is."""
        return self.stretches[-1].phase

    @property
    def trace(self) -> Trace:
        """What there is."""
        of_storages = self.without_graph, self.kept, self._copies, self._joined, self._lines
        return Trace(self.events, self.sizes, self.stretches, *of_storages)

    def close(self) -> None:
        """Note nothing more."""
        self._alive.clear()

    def _gone(self, key: int, number: int, _: object = None) -> None:
        del self._alive[key]
        self._of_pass.discard(number)
        self.events.append(~number)
        self.alive_bytes -= self.sizes[number]
        if self._made_in[number] == len(self.stretches) - 1:
            self.parts[number] = None if self.parts[number] == OTHER_GRAPHS else self.parts[number]
        elif self.parts[number] is None:
            was_forward = self.stretches[self._made_in[number]].phase == "forward"
            self.parts[number] = "activations" if was_forward else self.name_of(number)

    def name_of(self, number: int) -> str:
        """What a storage was for, if it went in the phase that made it: an evaluation with graphs may keep them all."""
        is_there = self.evaluates_with_graph and number not in self.without_graph
        has_graph = is_there and self.stretches[self._made_in[number]].phase == "evaluate"
        return self.parts[number] or (EVALUATED if has_graph else "temporaries")
