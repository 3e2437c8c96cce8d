"""Finds who holds what grows: two looks some steps apart."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forgather_mem.diagnose.leaks import suspects as leak_suspects
from forgather_mem.diagnose.leaks.holder_kinds import KINDS
from forgather_mem.diagnose.leaks.kept_lines import KeptLines
from forgather_mem.diagnose.leaks.snapshot import GrownObject, chains, grown, look, usual_bytes, weigh_whole
from forgather_mem.heap.containers import CONTAINERS, newest
from forgather_mem.heap.object_size import deep_bytes, has_graph, keeps_frames
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.heap.unreached import Mark, Unreached, all_containers, garbage_among, lead_to
from forgather_mem.source.syntax import forget_trees


@dataclass(frozen=True, slots=True)
class LookThresholds:
    """How far a look goes. Set on the scripts of `tests/leaks/zoo`.

    Attributes:
        least_frac: Of the growth: what explains less is no suspect.
        held_frac: Of the growth: a container that explains less is not preferred to the pieces themselves.
        explained_frac: Of the growth: if things nearby explain less, garbage is looked for.
        most_merged: Containers that are compared by name, since there may be one for each layer.
        most_weighed: Containers whose items are weighed, those that have grown most: a guess.
    """

    least_frac: float = 0.05
    held_frac: float = 0.15
    explained_frac: float = 0.5
    most_merged: int = 400
    most_weighed: int = 40


LOOK = LookThresholds()


class CloserLook:
    """The first of two looks; `finish` is the second. In between only numbers are kept, and a holder that is known."""

    STEPS = 10  # between the two

    def __init__(self, step: int, far: bool = False, held: leak_suspects.Place | None = None) -> None:
        """Take the first look, at the step that has just finished.

        Args:
            step: The number of it.
            far: Look for lines, and at what no name leads to,
            held: unless the holder is known: then for the line that adds to it.
        """
        self.step = step
        among = all_containers() if far and held is None else []
        walk = ReachableGraph.walk(among=among)
        self._look, self._saw_all = look(walk, step), walk.complete
        self._unreached = Unreached(walk, among) if among else None
        among.clear()  # what is freed from here on counts
        self._keys = held.keys if held is not None else set()
        size_of = held.measure(walk) if held is not None else None
        walk.forget()
        self._mark, self._kept, self._is_even = Mark(), KeptLines(opens=far, held=size_of), True

    def finish(self, step: int, rate: float, first_step: int = 0, is_even: bool = True) -> list[leak_suspects.Suspect]:
        """What has grown since, most likely cause first.

        Args:
            step: The step that has just finished.
            rate: The growth to explain, in bytes per step.
            first_step: Of the training.
            is_even: Whether the steps between the looks bring what others do, as without evaluations.
        """
        self._is_even = is_even
        num_steps, steps = max(1, step - first_step), max(1, step - self.step)
        self._kept.close()
        forget_trees()  # a tree's lists may have got the places of some that were shorter
        walk = ReachableGraph.walk(among=())
        try:
            found = self._found(walk, step, rate, num_steps)
            if self._unreached is not None and _told(found) < LOOK.explained_frac * rate:
                walk.forget()
                walk = self._walk_far(self._unreached, step, rate, num_steps)
                found = self._found(walk, step, rate, num_steps)
            told, suspects = _told(found), [leak_suspects.suspect_of(one, walk) for one in found]
        finally:
            walk.forget()
        found.clear()  # nothing of ours holds what may be garbage
        if told < LOOK.explained_frac * rate:
            suspects += self._garbage(step, rate)
        line = self._kept.line_of(rate * steps)
        if told < LOOK.held_frac * rate and all(KINDS[one.kind].is_sized and one.kind != "cycle" for one in suspects):
            suspects.append(leak_suspects.made_suspect(line, rate))
        self.drop()
        adding = self._kept.adding
        for suspect in suspects:
            if adding is not None and suspect.place is not None and suspect.place.keys & self._keys:
                suspect.set_line(adding, "added")
            elif not suspect.allocated_at and line is not None and suspect.bytes_per_step > LOOK.explained_frac * rate:
                suspect.set_line(line, "made")
            suspect.seen_at = step
        forget_trees()
        return _sorted(suspects, rate)

    def _found(self, walk: ReachableGraph, step: int, rate: float, num_steps: int) -> list[GrownObject]:
        """What has grown and matters, the largest first."""
        more = grown(self._look, walk, step)
        wholes = []
        for one in more:  # an evaluation may lie between the looks, or a part of a step
            if one.kind == "items":
                whole, steps = one.count / num_steps, max(1, step - self.step)
                pace = leak_suspects.pace_of(round(one.count_per_step * steps), steps, whole, self._is_even)
                most = rate / one.each_bytes
                # Where the run has had it as well; a fifth is a guess, and so is the third for what is from before it
                one.count_per_step = pace if whole > 0.8 * pace else min(pace, max(whole, most))
                one.is_whole = 0.75 * whole <= pace
                wholes += [one] if one.is_whole and whole > 0.8 * pace else []
        more = _joined(more, walk, wholes, max(1, step - self.step))
        weigh_whole(wholes[: LOOK.most_weighed], walk)
        found = [one for one in _nearest(merge_similar(more, walk), walk) if _matters(one, rate)]
        # Else these are the pieces of those, or what the first look had no time for
        explains = any(one.bytes_per_step > LOOK.held_frac * rate or has_graph(one.samples) for one in found)
        if not explains and (self._saw_all or not walk.complete):
            for one in chains(self._look, walk, step):
                one.each_bytes = min(one.each_bytes, rate / one.count_per_step)  # they are counted once per link
                found += [one] if _matters(one, rate) else []
            found.sort(key=lambda one: -one.bytes_per_step)
        return found[: leak_suspects.MAX_SUSPECTS]

    def _walk_far(self, unreached: Unreached, step: int, rate: float, num_steps: int) -> ReachableGraph:
        """From what is suspended, too; if that explains too little, to what has grown in the whole heap."""
        steps, among = max(1, step - self.step), all_containers()
        walk = ReachableGraph.walk(among=among)
        is_explained = _told(self._found(walk, step, rate, num_steps)) >= LOOK.explained_frac * rate
        grown = [] if is_explained else unreached.grown(walk, among, max(4, steps / 2))
        for thing, then in grown[: LOOK.most_weighed]:
            each = usual_bytes([deep_bytes(item, set(), set()) for item in newest(thing, 3)])
            each += CONTAINERS[type(thing)].place_bytes(thing)
            is_much = (len(thing) - then) * each >= LOOK.held_frac * rate * steps
            if is_much and lead_to(thing, walk, {id(among), id(grown), *map(id, grown)}):
                self._look.add(thing, then)
                break
        return walk

    def drop(self) -> None:
        """Stop what is recorded."""
        self._mark.drop()
        self._kept.close()

    def _garbage(self, step: int, rate: float) -> list[leak_suspects.Suspect]:
        """Reference cycles created since the first look that nothing holds any more."""
        young = self._mark.younger()
        found = leak_suspects.cycle_suspects([] if young is None else garbage_among(young), max(1, step - self.step))
        # Less may wait to be collected
        return [one for one in found if one.bytes_per_step >= LOOK.explained_frac * rate]


def _sorted(suspects: list[leak_suspects.Suspect], rate: float) -> list[leak_suspects.Suspect]:
    """The likeliest first: of two that explain about as much, the one whose line is known."""
    _give_rest_to_graph(suspects, rate)
    suspects.sort(
        key=lambda one: (one.last, -round(5 * one.bytes_per_step / rate), not one.allocated_at, -one.bytes_per_step)
    )
    return [one for one in suspects if not _is_part(one, suspects)][: leak_suspects.MAX_SUSPECTS]


def _joined(more: list[GrownObject], walk: ReachableGraph, wholes: list[GrownObject], steps: int) -> list[GrownObject]:
    """With what grows in most items of one that gets more of these all the time as growth of that one: its cause."""
    within: dict[int, list[GrownObject]] = {one.position: [] for one in wholes}
    for one in more:
        at = walk.parent(one.position)
        while at >= 0 and at not in within:
            at = walk.parent(at)
        within.get(at, []).append(one)
    for outer in wholes[:]:
        parts = within[outer.position]
        if parts and 2 * len(parts) >= outer.count - round(outer.count_per_step * steps):
            wholes.remove(outer)
            outer.each_bytes += sum(one.bytes_per_step for one in parts) / outer.count_per_step
            outer.is_whole, outer.part = False, parts[0]
            more = [one for one in more if one not in parts]
    return more


def _nearest(found: Sequence[GrownObject], walk: ReachableGraph) -> list[GrownObject]:
    """Without those whose items another one has, too, that is nearer to a name; the largest first."""
    kept: list[GrownObject] = []
    seen: set[int] = set()
    for one in sorted(found, key=lambda one: len(walk.way(one.position))):
        parts = itertools.chain.from_iterable(sample if type(sample) is tuple else (sample,) for sample in one.samples)
        items = {id(part) for part in parts if gc.is_tracked(part)} if one.kind == "items" else set()
        kept += [one] if items.isdisjoint(seen) else []
        seen |= items
    return sorted(kept, key=lambda one: -one.bytes_per_step)


def _told(found: Sequence[GrownObject]) -> float:
    """How many bytes a step these explain; what C++ or the frames of an error hold can't be told."""
    open_ = any(one.kind == "graph" or keeps_frames(one.samples) for one in found)
    return math.inf if open_ else sum(one.bytes_per_step for one in found)


def _matters(one: GrownObject, rate: float) -> bool:
    """Whether it is large enough to be the leak, or a part of it."""
    if one.kind == "graph" or one.bytes_per_step >= LOOK.least_frac * rate:
        return True
    # The size of some pieces is known to C++ only
    holds_graphs = one.count_per_step >= 0.5 and has_graph(one.samples)
    return one.kind == "items" and (holds_graphs or keeps_frames(one.samples))


def _give_rest_to_graph(suspects: list[leak_suspects.Suspect], rate: float) -> None:
    """The size of a graph can't be queried: attribute to it what the others don't explain, where that is much."""
    graphs = [one for one in suspects if not KINDS[one.kind].is_sized]
    rest = rate - sum(one.bytes_per_step for one in suspects)
    for one in graphs[:1]:
        one.bytes_per_step += rest if rest > (1 - LOOK.explained_frac) * rate else 0.0
        if one.count and one.count_per_step:
            one.bytes = round(one.count * one.bytes_per_step / one.count_per_step)


def _is_part(one: leak_suspects.Suspect, suspects: list[leak_suspects.Suspect]) -> bool:
    """Whether it is inside another suspect, which is more informative."""
    name = one.held_by or ""
    return any(other.held_by and name.startswith((f"{other.held_by}[", f"{other.held_by}.")) for other in suspects)


def merge_similar(found: list[GrownObject], walk: ReachableGraph) -> list[GrownObject]:
    """Merge those that differ only by an index or a key, and have items of one sort; the largest first."""
    groups: dict[tuple[str, object], list[GrownObject]] = {}
    for one in found[: LOOK.most_merged]:
        sort = leak_suspects.sort_of(one.samples) if one.kind == "items" else one.kind
        groups.setdefault(
            (leak_suspects.INDICES.sub("[...]", leak_suspects.path_of(walk, one.position)), sort), []
        ).append(one)
    merged = [ones[0] if len(ones) == 1 else _sum_of(name, ones) for (name, _), ones in groups.items()]
    return sorted([*merged, *found[LOOK.most_merged :]], key=lambda one: -one.bytes_per_step)


def _sum_of(name: str, ones: Sequence[GrownObject]) -> GrownObject:
    count_per_step = sum(one.count_per_step for one in ones)
    each_bytes = sum(one.bytes_per_step for one in ones) / count_per_step
    count, bounds = sum(one.count for one in ones), [one.bound for one in ones if one.bound is not None]
    bound = sum(bounds) if len(bounds) == len(ones) else None
    more = replace(ones[0], count_per_step=count_per_step, each_bytes=each_bytes, count=count)
    return replace(more, bound=bound, name=name, others=[one.position for one in ones[1:]])
