"""In a process of `forgather-mem run` that plans a failed training again: which remedies let it fit.

The plan has to reproduce the failure first: in the same phase it makes an allocation as large as the one that failed,
beside as much as there was. What is told to fit has a plan whose peak does, with all that was beside it in the process
that failed. On the host a peak is what the C library takes of the system when it is asked for the plan's tensors, and
as much more as the process that failed had taken for its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.context import DETACHED, EVALUATION, NO_GRAPH, RunSettings, settings_of
from forgather_mem.diagnose.oom.explanation import in_own_loop
from forgather_mem.diagnose.oom.failure import NOBODY_SAID, Failure
from forgather_mem.diagnose.oom.remedies import goes_back_each, plannable
from forgather_mem.diagnose.oom.remedy import NOTHING, NUMBERS, Remedy, doing
from forgather_mem.errors import PlanError, missing
from forgather_mem.heap.census import take_census
from forgather_mem.launch.failed_training import BETWEEN, HARD_LIMIT, FailedTraining, KillInPlan, parsed_sizes
from forgather_mem.launch.host_heap import taken_of_host
from forgather_mem.launch.own_loop import Edit, OwnLoop, without_graphs
from forgather_mem.planning.batches import Collate, PlannedShape, Trainer, Wanted, with_sides
from forgather_mem.planning.entry import begun_plan
from forgather_mem.planning.loop.rounds import where_it_ends
from forgather_mem.planning.loop.script import Script
from forgather_mem.planning.model import KEPT, OTHER_MODELS, OTHER_TENSORS
from forgather_mem.planning.result import PhasePlan, Plan
from forgather_mem.planning.storage_log import COPIES, OTHER_GRAPHS, Kept, StorageRequest
from forgather_mem.reporting.problems import PLANNED_PHASES
from forgather_mem.source.source_lines import line_name, source_line
from forgather_mem.system.memory_limit import own_limits
from forgather_mem.system.procfs import own_memory
from forgather_mem.telemetry.report import Change
from forgather_mem.telemetry.report_schema import to_dict
from forgather_mem.units import format_bytes

_ARGMAX, _ACCUMULATION = "preprocess_logits_for_metrics", "gradient_accumulation_steps"


@dataclass(frozen=True, slots=True)
class PlanningLimits:
    """What counts as the same and as fitting.

    Attributes:
        alike_frac: A plan that reproduces a failure may be so far from what was measured; a guess. Kept free of the
            limit where that was not measured whole: set on the lengths of one killed Trainer (in the third set of
            benchmarks/results/ooms.md), of which one that left 7 % did not fit; all that left a tenth then did.
        kept_free_frac: Of the limit, since what is told comes within 6 % of what is taken (benchmarks/results/ooms.md).
        most_told: Changes that fit; then no more are planned.
        few_batches: Of a step; more add nothing but themselves.
    """

    alike_frac: float = 0.1
    kept_free_frac: float = 0.05
    most_told: int = 4
    few_batches: int = 2


_LIMITS = PlanningLimits()


def remedies_for(failed: FailedTraining, training: Trainer | Script) -> Iterator[dict[str, object]]:
    """The `changes` that were planned to fit, as in a report; or a `problem`. Each answer replaces the one before.

    With them `too_large`, the largest changes of a kind that are not enough. One that needs more only by gaps between
    tensors is among the others, without a peak. All but the last are
    `unfinished`: whoever waits may have no more time. Of a training that was killed it is told where its plan has it:
    `killed`, a `KillInPlan`.

    Args:
        failed: What it took.
        training: The script's Trainer before it trains, or its own loop.
    """
    found, ended = PlannedRemedies(), dict[str, object]()
    try:
        for _ in _plan_remedies(failed, training, found):
            yield {**found.answer(), "unfinished": True}
    except PlanError as error:
        ended["problem"] = str(error)
    yield {**found.answer(), **ended}


def _plan_remedies(failed: FailedTraining, training: Trainer | Script, found: PlannedRemedies) -> Iterator[None]:
    """Adds to what was found, again and again."""
    loop = OwnLoop() if isinstance(training, Script) else None
    planner = _Planner(failed, training, loop, found)
    rows, phase = failed.rows or planner.own.rows, failed.phase or found.kills[-1].phase
    keeps_graphs = failed.keeps_graphs or planner.grows or (phase == EVALUATION and bool(failed.needless))
    failure = Failure(
        found=replace(NOBODY_SAID, where="device" if failed.on_device else "host"),
        phase=phase,
        settings=_settings(training, loop),
        batch=Batch(rows, failed.length) if rows else None,
        is_planned=True,
        keeps_graphs=keeps_graphs or (loop is not None and loop.keeps_graphs),
    )
    needless = [*planner.needless_graphs(failure.phase)]
    is_known = failed.needless or failure.phase != EVALUATION  # else only a plan shows that a graph is kept
    found.changes.extend((-1, change) for change in needless if is_known)  # there may be no time to plan it
    yield
    with suppress(PlanError):
        found.changes[:] = [(-1, fits) for fits in planner.that_fit(needless)]
        found.changes.extend([*planner.that_goes_back_each(), *planner.that_keep_less()])
    found.changes.extend([(-1, planner.at_once)] if planner.at_once else [])
    yield
    # How much will be kept of steps that are not planned nobody knows
    if failed.grown[0] or (planner.grows and planner.own.bound == "at least"):
        if not found.changes:
            raise PlanError(f"{failed.grown[0] or 'what is kept of each step'} has grown until then")
        return
    parts = planner.own.highest_parts()
    for remedy, ladder in plannable(failure, max(parts, key=parts.__getitem__)):
        if len(found.changes) < _LIMITS.most_told:
            yield from found.add(ladder, remedy, planner)


@dataclass(frozen=True, slots=True)
class PlannedRemedies:
    """What has been planned so far, as `remedies_for` tells it."""

    changes: list[tuple[int, Change]] = field(default_factory=list)  # with what each alters
    too_large: list[Change] = field(default_factory=list)
    kills: list[KillInPlan] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # why some could not be planned

    def add(self, ladder: Sequence[Change], remedy: Remedy, planner: _Planner) -> Iterator[None]:
        """Of these changes the first that fits, or that none does; nothing where they can't be planned.

        What only gaps between tensors make too large may help: an estimate of gaps alone rules nothing out.
        Yields at each that fits, too: there may be no time to find a smaller one.
        """
        place = len(self.changes)
        try:
            for fits in planner.that_fit(ladder):
                self.changes[place:] = [(remedy.alters, fits)]
                yield
        except PlanError as error:
            self.problems.append(str(error))
            return
        if len(self.changes) == place:
            last, is_clear = planner.written(ladder[-1]), planner.least_bytes > planner.most_bytes
            self.too_large.extend([last] * is_clear)
            self.changes.extend([(remedy.alters, last)] * (not is_clear))
            yield

    def answer(self) -> dict[str, object]:
        """In JSON's types."""
        changes = [change for _, change in sorted(self.changes, key=lambda told: told[0])]
        lists = {"changes": changes, "too_large": self.too_large}
        told: dict[str, object] = {name: [to_dict(change) for change in found] for name, found in lists.items()}
        told["killed"] = to_dict(self.kills[-1]) if self.kills else None
        is_planned = self.too_large or any(change.predicted_bytes for change in changes)
        return told if is_planned or not self.problems else {**told, "problem": self.problems[0]}


class _Planner:
    """Plans the failed training with other settings.

    Attributes:
        own: The plan that shows the failure.
        most_bytes: What its tensors can take, as the failure itself shows, without what is kept free.
        least_bytes: What they take without gaps between them, by the plan that was made last.
        at_once: Less of what one line makes, where that is most of what a kill came by.

    Raises:
        PlanError: if the plan does not reproduce the failure.
    """

    def __init__(self, failed: FailedTraining, training: Trainer, loop: OwnLoop | None, found: PlannedRemedies) -> None:
        self._failed, self._training, self._loop, self._found = failed, training, loop, found
        # Of a process that was killed nobody has told: it began as this one does
        self._began_bytes = own_memory().anonymous_bytes if failed.taken_bytes is None else 0
        self._room_bytes = self.least_bytes = 0
        there = {one.part: one.num_bytes for one in take_census(())} if failed.held else {}  # when training begins
        self._held = {part: max(0, size - there.get(part, 0)) for part, size in failed.held.items()}
        self.at_once: Change | None = None
        for sizes in (parsed_sizes(failed.sizes), {}):  # in a loop of the script's own they may be another model's
            self._sizes = sizes
            try:
                self.own = self._plan({})
                if failed.grown[0]:  # it counts by what was measured
                    kept = {number for one in self.own.trace.kept for number in one.numbers}
                    self.own = replace(self.own, trace=self.own.trace.without(kept))
                if loop is not None:
                    loop.learn(self.own, failed.rows)
                self._room_bytes = self._room()
                break
            except PlanError:
                if loop is None or not sizes:
                    raise
        # Where what was in use was not measured whole, or gaps took much, nothing says that a plan is nearer
        gaps_bytes = failed.limit_bytes - failed.beside_bytes - (failed.taken_bytes or 0)
        has_gaps = gaps_bytes > _LIMITS.alike_frac * failed.limit_bytes
        is_measured = failed.taken_bytes is not None and not failed.unseen_bytes and not has_gaps
        kept_frac = _LIMITS.kept_free_frac if is_measured else _LIMITS.alike_frac
        self.most_bytes = self._room_bytes - kept_frac * failed.limit_bytes
        if self._sizes and self.own.lengths_differ:  # the longest rows of the data, if these take more than the batch
            as_told, self._sizes = (self._sizes, self.own), {}
            self._sizes, self.own = max(as_told, ({}, self._plan({})), key=lambda one: one[1].peak_bytes)

    @property
    def grows(self) -> bool:
        """Whether more and more is kept: as much of more, smaller batches, of which few are planned."""
        return self.own.trace.grown_bytes() > _LIMITS.kept_free_frac * self._failed.limit_bytes

    def written(self, change: Change) -> Change:
        """As the user writes it."""
        return in_own_loop(change) if self._loop else change

    def that_fit(self, ladder: Sequence[Change]) -> Iterator[Change]:
        """Of these changes some that fit, with their peaks, each smaller than the one before, to the smallest.

        Raises:
            PlanError: if the largest can't be planned.
        """
        low, high = 0, len(ladder)
        while low < high:
            # The last one first: often none fits
            at = high - 1 if high == len(ladder) else (low + high) // 2
            try:
                plan = self._plan({**ladder[at].set, **ladder[at].in_script})
                need, self.least_bytes = self._bytes_of(plan), plan.peak_bytes - _others(plan.parts)
            except PlanError:
                if at == len(ladder) - 1:
                    raise
                need = self.most_bytes + 1
            if need <= self.most_bytes:
                high = at
                yield self._with_peak(self.written(ladder[at]), need)
            else:
                low = at + 1

    def needless_graphs(self, phase: str) -> Iterator[Change]:
        """Without those that no training needs, of all at once, since all are planned so."""
        needless, of = [*self._failed.needless], EVALUATION if phase == EVALUATION else True
        if self._failed.taken_bytes is None and self._loop is not None and phase == EVALUATION:  # no census was there
            needless = [("torch.no_grad() around the evaluation", "no backward pass follows")]
        elif phase != EVALUATION and self.own.untrained:
            note = "no optimizer has its parameters, but a graph is kept for a backward pass through it"
            needless = [(f"torch.no_grad() around what {name} computes", note) for name in self.own.untrained]
        if needless:
            texts, notes = zip(*needless, strict=True)
            yield Change(text=", and ".join(texts), note=notes[0], in_script={NO_GRAPH: of})

    def that_goes_back_each(self) -> Iterator[tuple[int, Change]]:
        """After a kill: of a loop of the script's own in which one backward pass goes through several. Who keeps their
        graphs nobody has told."""
        joined = self.own.trace.joined
        if joined and self._loop is not None and self._failed.taken_bytes is None:
            trace = self.own.trace.without(set().union(*joined.values()))
            change, need = goes_back_each("the loss", max(joined)), self._bytes_of(replace(self.own, trace=trace))
            if need <= self.most_bytes:
                change = self._with_peak(change, need)
            # Of batches that no loader makes the passes may be of one. An estimate of gaps alone rules nothing out
            alone = max((made.before_bytes + made.size for made in trace.requests()), default=0)
            yield from [(-1 if self._loop.keeps_graphs else NOTHING, change)] * (alone <= self.most_bytes)

    def that_keep_less(self) -> Iterator[tuple[int, Change]]:
        """Of what the loop keeps from step to step: not both what is replaced and what replaces it, or fewer items.

        With what each alters: nobody knows whether what is no list may go.
        """
        if self._failed.phase == "other" and (copies := self.own.trace.copies):
            need = self._bytes_of(replace(self.own, trace=self.own.trace.without(set().union(*copies.values()))))
            change = doing(f"torch.save to a file, not a copy of {' and '.join(copies)}", "a file takes no memory")
            yield from [(-1, self._with_peak(change, need))] * (need <= self.most_bytes)
        name, num_bytes, num_items = self._failed.grown
        for kept in [Kept(name, num_items, num_bytes, set())] if name else self.own.trace.kept:
            need = self._bytes_of(replace(self.own, trace=self.own.trace.without(kept.numbers)))
            old_bytes = self.own.trace.replaced_bytes(kept)
            beside = kept.num_bytes - old_bytes  # in place of what went
            if old_bytes and need + max(0, beside) <= self.most_bytes:
                text = f"delete {kept.name} before the next is made"
                change = doing(text, "not both at once", **{kept.name: "deleted"})
                yield -1, self._with_peak(change, need + max(0, beside))
            elif need <= self.most_bytes and (self._failed.cure or self.most_bytes < need + kept.num_bytes):
                each = kept.num_bytes / max(1, kept.num_items)
                most = int((self.most_bytes - need) / each)
                text = f"keep {f'at most {most:,} of its entries' if most else 'nothing'} in {kept.name}"
                change = doing(text, "from step to step", **{kept.name: most})
                if self._failed.cure:
                    most, change = 0, doing(self._failed.cure, **{DETACHED: kept.name})
                alters = -1 if most or self._failed.cure else NUMBERS
                yield alters, self._with_peak(change, need + most * each)

    def _with_peak(self, change: Change, need: float) -> Change:
        """With all that is beside it."""
        return replace(change, predicted_bytes=round(need) + self._failed.limit_bytes - self._room_bytes)

    def _plan(self, changed: Mapping[str, object]) -> Plan:
        """With these values of `Change.set` and `in_script`.

        Raises:
            PlanError: if it can't be planned.
        """
        arguments: dict[str, Any] = dict(changed)
        length, filtered = arguments.pop("max_length", None), arguments.pop(_ARGMAX, None)
        batch = _settings(self._training, self._loop).number("per_device_train_batch_size")
        now = self._failed.rows if self._sizes and self._failed.rows else batch
        rows = max(1, round(now * int(arguments.pop("per_device_train_batch_size", batch)) / batch))
        accumulation, is_lean = arguments.get(_ACCUMULATION), arguments.pop(NO_GRAPH, False)
        of = None if self._loop else self._training
        edits: list[Edit] = [functools.partial(without_graphs, of, is_lean == EVALUATION)] * bool(is_lean)
        sizes, was, shape = self._sizes, self._failed.length, PlannedShape(rows)

        def collating(collate: Collate) -> Collate:
            """One whose batches have these sizes but for their rows; and rows of another length."""
            return lambda samples: _sized(_collated(collate, samples), sizes, was, length)

        if self._loop is not None:
            edits += self._loop.edits_of(arguments)
            shape = PlannedShape(rows if accumulation else None)
        elif accumulation:
            arguments[_ACCUMULATION] = min(_LIMITS.few_batches, accumulation)
        if filtered:
            edits.append(functools.partial(setattr, self._training, _ARGMAX, _argmax))
        return begun_plan(self._training, Wanted(shape, self._failed.on_device, 1, arguments, edits, collating))()

    def _room(self) -> int:
        """What the training's tensors can take.

        Raises:
            PlanError: if the plan does not reproduce the failure.
        """
        failed, own = self._failed, self.own
        room = failed.limit_bytes - failed.beside_bytes + failed.grown[1]
        if failed.taken_bytes is None:
            room -= self._began_bytes - own.phases[0].parts.get("parameters", 0)  # the model is there already
        least = (1 - _LIMITS.alike_frac) * room
        row = self._row(least)
        shows = row.bytes - _others(row.parts) >= least
        if failed.taken_bytes is None:
            self._note_kill(row, room, shows)
        wanted, taken, tolerated = failed.requested_bytes, failed.taken_bytes, _LIMITS.alike_frac * failed.limit_bytes
        if wanted is None or taken is None or failed.phase == "evaluate":
            if not shows:
                there = "between steps" if failed.phase == "other" else f"in {failed.phase or row.phase}"
                took = f"the training's own tensors take {format_bytes(row.bytes)}"
                raise PlanError(f"{where_it_ends(own.notes)}{took} {there}, which would have fitted")
            return room
        taken += _others(own.parts)
        nearest = self._request(row, wanted, taken)
        if failed.on_device:
            return min(room, nearest.before_bytes + min(wanted, room - taken))
        rounds = self._taken(own)[: 1 if failed.is_first_step else None]
        alike = [one for found in rounds for one in found if one.size == nearest.size]
        shown = [one.taken_bytes for one in alike if abs(one.before_bytes - nearest.before_bytes) <= tolerated]
        # The failure itself was too much: where less is told of it, it is so of other plans
        return min(room, max(shown) - _others(own.parts) + failed.grown[1]) if shown else room

    def _note_kill(self, row: PhasePlan, room: int, shows: bool) -> None:
        names = {OTHER_GRAPHS: f"graph of {' and '.join(self.own.untrained)}"}
        names[COPIES] = f"a copy of {' and '.join(self.own.trace.copies)}"
        if self.own.trace.joined and self._loop is not None:
            names["activations"] = f"graphs of up to {max(self.own.trace.joined):,} passes"
        for kept in self.own.trace.kept[:1]:
            names[KEPT] = f"{'most in ' * (len(self.own.trace.kept) > 1)}{kept.name}"
        parts = {names.get(part, part): size for part, size in row.parts.items()}
        # What of others' was there when the training began is in both
        left, phase = room + _others(row.parts), BETWEEN if self._failed.phase == "other" else row.phase
        made = self.own.trace.made_at(row.step, row.phase)
        # A third: the line that an evaluation died by had made 46 % (one script); the rest may be many lines
        line, line_bytes = (line_name(*made[0]), made[1]) if made and 3 * made[1] >= row.bytes else ("", 0)
        self._found.kills.append(
            KillInPlan(
                phase=phase, num_bytes=row.bytes, room_bytes=left, parts=parts, is_shown=shows,
                line=line, line_bytes=line_bytes, held=self._held,
            )
        )  # fmt: skip
        if made and line and shows and 2 * row.parts.get("temporaries", 0) >= row.bytes:
            text = f"less at once at {line}: {format_bytes(line_bytes)}"
            self.at_once = doing(text, source_line(*made[0]), **{line: ""})

    def _request(self, row: PhasePlan, wanted: int, taken: int) -> StorageRequest:
        """Of this phase's allocations as large as the one that failed the one beside as much as there was.

        Raises:
            PlanError: if there is none.
        """
        until = where_it_ends(self.own.notes)
        there = [one for one in self.own.trace.requests() if (one.step, one.phase) == (row.step, row.phase)]
        alike = [one for one in there if abs(one.size - wanted) <= _LIMITS.alike_frac * wanted]
        if not alike:
            raise PlanError(f"{until}the plan's {row.phase} asks nowhere for {format_bytes(wanted)} at once")
        nearest = min(alike, key=lambda one: self._differs_by(one, taken))
        if self._differs_by(nearest, taken) > _LIMITS.alike_frac * self._failed.limit_bytes:
            raise PlanError(f"{until}the plan has another amount in memory when it asks for {format_bytes(wanted)}")
        return nearest

    def _differs_by(self, planned: StorageRequest, taken: int) -> int:
        """What was there then from what this allocation of the plan has beside it."""
        return max(taken - planned.before_bytes, planned.before_bytes - taken - self._failed.unseen_bytes, 0)

    def _row(self, least_bytes: float) -> PhasePlan:
        """The phase in which memory ran out; where nobody knows it, the first that takes so much, else the largest.

        Raises:
            PlanError: if the plan has none.
        """
        failed, own = self._failed, self.own
        at = 1 if failed.is_first_step and failed.phase != "evaluate" else 2, failed.phase
        if failed.taken_bytes is None and failed.phase not in PLANNED_PHASES:  # between steps, or nobody knows when
            between = [row for row in own.phases if row.step == 2 and row.phase in ("data", "optimizer")]
            rows = between if failed.phase else own.phases
            enough = [row for row in rows if row.bytes - _others(row.parts) >= least_bytes and not failed.phase]
            return next(iter(enough), max(rows, key=lambda row: row.bytes))
        for row in own.phases:
            if (row.step, row.phase) == at:
                return row
        raise PlanError(f"the plan has no {failed.phase}")

    def _bytes_of(self, planned: Plan) -> float:
        """What it takes of the system, without others' tensors, which are beside the training."""
        if self._failed.on_device:
            return max(planned.peak_bytes, planned.reserved_bytes)
        taken = [one for found in self._taken(planned) for one in found]
        if any(one.is_refused for one in taken):
            left = next((limit.limit for limit in own_limits()), "a limit of this process")
            raise PlanError(f"{left} leaves too little to plan in, and {HARD_LIMIT}")
        return max(one.taken_bytes for one in taken) - _others(planned.parts)

    def _taken(self, planned: Plan) -> list[list[StorageRequest]]:
        # Of a kill nobody has told which batches came before: smaller ones leave more gaps
        return taken_of_host(planned.trace, of_several_sizes=planned.lengths_differ or self._failed.taken_bytes is None)


def _settings(training: Trainer, loop: OwnLoop | None) -> RunSettings:
    return loop.settings if loop else settings_of(training.args, training.model, training)


def _others(parts: Mapping[str, int]) -> int:
    return sum(parts.get(part, 0) for part in (OTHER_MODELS, OTHER_TENSORS))


def _argmax(logits: object, labels: object) -> object:
    """What the remedy tells to write; of a model that gives more, of its logits."""
    first = logits[0] if isinstance(logits, list | tuple) else logits
    return first.argmax(-1) if isinstance(first, torch.Tensor) else first


def _collated(collate: Collate, samples: Any) -> object:
    """Of rows that the training's own sampler may never join, a batch of the first, the longest."""
    with missing(RuntimeError, ValueError):
        return collate(samples)
    return collate(samples[:1] * len(samples))


def _sized(batch: object, sizes: Mapping[str, tuple[int, ...]], was: int | None, length: int | None) -> object:
    named = dict(enumerate(batch)) if isinstance(batch, list | tuple) else batch
    pairs = [
        (tensor.shape, sizes[str(name)])
        for name, tensor in (named.items() if isinstance(named, Mapping) else ())
        if isinstance(tensor, torch.Tensor) and len(sizes.get(str(name), ())) == tensor.dim()
    ]
    sides = {old: new for shape, told in pairs for old, new in zip(shape[1:], told[1:], strict=False) if old != new}
    if length is not None and was is not None:
        sides = {was: was} | sides
        sides = {old: length if new == was else new for old, new in sides.items()}
    return with_sides(batch, lambda place: sides if place else {}) if sides else batch
