"""In a process of `forgather-mem run` that plans a failed training again: which remedies let it fit.

The plan has to reproduce the failure first: in the same phase it makes an allocation as large as the one that failed,
beside as much as there was. What is told to fit has a plan whose peak does, with all that was beside it in the process
that failed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

import torch
from torch.utils._pytree import tree_map_only

from forgather_mem.diagnose.oom.context import RunSettings, settings_of
from forgather_mem.diagnose.oom.remedies import Case, plannable, together
from forgather_mem.errors import PlanError
from forgather_mem.launch.failed_training import FailedTraining, parsed_sizes
from forgather_mem.planning.batches import Loader, Trainer
from forgather_mem.planning.entry import plan
from forgather_mem.planning.result import Plan
from forgather_mem.telemetry.report import Change
from forgather_mem.telemetry.report_schema import to_dict
from forgather_mem.units import MIB, format_bytes

_ARGMAX = "preprocess_logits_for_metrics"


@dataclass(frozen=True, slots=True)
class PlanningLimits:
    """What counts as the same and as fitting.

    Attributes:
        alike_frac: A plan that reproduces a failure may be so far from what was measured.
        kept_free_frac: Of the limit.
        gaps_frac, gaps_of_heap_frac: Of what comes and goes on the host: the C library can't use every gap between
            tensors. The latter where all are in its heap. Set on scripts of our own, where without them two changes
            that were planned to fit did not; of twelve scripts by others 5 of 6 such changes fit.
        mapped_bytes: The C library maps what is larger by itself (DEFAULT_MMAP_THRESHOLD_MAX of malloc.c).
        most_told: Changes that fit; then no more are planned.
        few_batches: Of a step; more add nothing but themselves.
        to_tell_s: The answer takes less.
        least_s: So long it is planned in any case.
    """

    alike_frac: float = 0.1
    kept_free_frac: float = 0.03
    gaps_frac: float = 0.1
    gaps_of_heap_frac: float = 0.5
    mapped_bytes: int = 32 * MIB
    most_told: int = 4
    few_batches: int = 2
    to_tell_s: float = 1.0
    least_s: float = 0.1


_LIMITS = PlanningLimits()


class _TimeIsUp(BaseException):
    """Planning has to end: no handler of exceptions is meant."""


@contextmanager
def _until(until_s: float) -> Iterator[None]:
    """Raise `_TimeIsUp` then, wherever this thread is; what has been planned by then is told."""

    def end(*_: object) -> NoReturn:
        raise _TimeIsUp("there was no time left")

    try:
        was = signal.signal(signal.SIGALRM, end)
    except ValueError:  # another thread than the main one: whoever waits for the answer ends this process
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, max(_LIMITS.least_s, until_s - time.time() - _LIMITS.to_tell_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)


def remedies_for(failed: FailedTraining, trainer: Trainer) -> dict[str, object]:
    """The `changes` that were planned to fit, as in a report; or a `problem`.

    With them `too_large`, the largest changes of a kind that are not enough, and `kinds`, what was planned, by the
    names of settings. It is `unfinished` where there was no time for all.

    Args:
        failed: What it took.
        trainer: The script's, before it trains.
    """
    settings = settings_of(trainer.args, trainer.model, trainer)
    planner = _Planner(failed, settings, trainer)
    case = Case(
        phase=failed.phase, settings=settings, rows=failed.rows, length=failed.length, on_device=failed.on_device
    )
    found = PlannedRemedies()
    try:
        with _until(failed.until_s):
            own = planner.plan({})
            room = _room(own, failed)
            planner.look_at_longest(own)
            for ladder in plannable(case):
                found.add(ladder, planner.first_that_fits(ladder, room))
                if len(found.changes) == _LIMITS.most_told:
                    break
            for ladder in together(case):
                if not found.changes:
                    found.add([], planner.first_that_fits(ladder, room))
    except PlanError as error:
        return {"problem": str(error)}
    except _TimeIsUp as error:
        return {**found.answer(), "unfinished": True} if found.kinds else {"problem": str(error)}
    return found.answer()


@dataclass(frozen=True, slots=True)
class PlannedRemedies:
    """What has been planned so far, as `remedies_for` tells it."""

    changes: list[Change] = field(default_factory=list)
    too_large: list[str] = field(default_factory=list)
    kinds: list[list[str]] = field(default_factory=list)

    def add(self, ladder: Sequence[Change], fits: Change | None) -> None:
        """Of these changes one fits, or none does."""
        if fits is not None:
            self.changes.append(fits)
        if ladder:
            self.kinds.append(sorted({**ladder[0].set, **ladder[0].in_script}))
            self.too_large.extend([ladder[-1].text] if fits is None else [])

    def answer(self) -> dict[str, object]:
        """In JSON's types."""
        changes = [to_dict(change) for change in self.changes]
        return {"changes": changes, "too_large": self.too_large, "kinds": self.kinds}


def _room(own: Plan, failed: FailedTraining) -> int:
    """What the training's tensors can take, as the failure itself shows.

    Raises:
        PlanError: if the plan does not reproduce the failure.
    """
    step = 1 if failed.is_first_step and failed.phase != "evaluate" else 2
    rows = [row for row in own.phases if row.step == step]
    phases = {row.phase: row.bytes for row in rows}
    if failed.phase not in phases:
        raise PlanError(f"the plan has no {failed.phase}")
    room = failed.limit_bytes - failed.beside_bytes
    if failed.taken_bytes is None:  # there the model was counted, too
        room += own.phases[0].parts.get("parameters", 0)
    wanted = failed.requested_bytes
    if wanted is not None and failed.taken_bytes is not None and failed.phase != "evaluate":
        there = [one for one in own.requests if (one.step, one.phase) == (step, failed.phase)]
        alike = [one for one in there if abs(one.size - wanted) <= _LIMITS.alike_frac * wanted]
        if not alike:
            raise PlanError(f"the plan's {failed.phase} asks nowhere for {format_bytes(wanted)} at once")
        taken = failed.taken_bytes
        nearest = min(alike, key=lambda one: abs(one.before_bytes - taken))
        if abs(nearest.before_bytes - taken) > _LIMITS.alike_frac * failed.limit_bytes:
            had = f"its tensors took {format_bytes(taken)} then"
            raise PlanError(f"{had}, in the plan {format_bytes(nearest.before_bytes)}")
        room = min(room, nearest.before_bytes + min(wanted, failed.limit_bytes - failed.beside_bytes - taken))
    elif phases[failed.phase] < (1 - _LIMITS.alike_frac) * room:
        raise PlanError(
            f"the plan's {failed.phase} takes {format_bytes(phases[failed.phase])}, which would have fitted"
        )
    return room


class _Planner:
    """Plans the failed training with other settings."""

    def __init__(self, failed: FailedTraining, settings: RunSettings, trainer: Trainer) -> None:
        self._failed, self._settings, self._trainer = failed, settings, trainer
        self._load, self._sizes = trainer.get_train_dataloader, parsed_sizes(failed.sizes)
        self._is_over = False

    def plan(self, changed: Mapping[str, object]) -> Plan:
        """With these values of `Change.set` and `in_script`.

        Raises:
            PlanError: if it can't be planned.
        """
        if self._is_over:
            raise _TimeIsUp
        arguments = dict(changed)
        length, filtered = arguments.pop("max_length", None), arguments.pop(_ARGMAX, None)
        length = length if isinstance(length, int) else None
        batch = self._settings.number("per_device_train_batch_size")
        now = self._failed.rows if self._sizes and self._failed.rows else batch
        rows = max(1, round(now * int(str(arguments.pop("per_device_train_batch_size", batch))) / batch))
        accumulation = arguments.get("gradient_accumulation_steps")
        if isinstance(accumulation, int):
            arguments["gradient_accumulation_steps"] = min(_LIMITS.few_batches, accumulation)
        trainer, own_filter = self._trainer, self._trainer.preprocess_logits_for_metrics
        trainer.get_train_dataloader = partial(_loading, self._load, self._sizes, self._failed.length, length)
        if filtered:
            trainer.preprocess_logits_for_metrics = _argmax
        try:
            return plan(trainer, on_device=self._failed.on_device, rows=rows, **arguments)  # type: ignore[arg-type]
        finally:
            trainer.preprocess_logits_for_metrics, trainer.get_train_dataloader = own_filter, self._load

    def look_at_longest(self, own: Plan) -> None:
        """From now on plan the longest rows of the data, if these take more than the batch that failed."""
        sizes, self._sizes = self._sizes, {}
        if sizes and self.plan({}).peak_bytes <= own.peak_bytes:
            self._sizes = sizes

    def first_that_fits(self, ladder: Sequence[Change], room: int) -> Change | None:
        """The smallest change of these that fits, with its peak; None if none does or none can be planned."""
        most = room - _LIMITS.kept_free_frac * self._failed.limit_bytes
        low, high, found = 0, len(ladder), None
        while low < high:
            # The last one first: often none fits
            at = high - 1 if high == len(ladder) else (low + high) // 2
            try:
                need = self._need({**ladder[at].set, **ladder[at].in_script})
            except PlanError:
                need = room + 1
            except _TimeIsUp:
                self._is_over = True
                if found is None:
                    raise
                return found
            if need <= most:
                high, found = at, _with_peak(ladder[at], need + self._failed.limit_bytes - room)
            elif at == len(ladder) - 1:
                return None
            else:
                low = at + 1
        return found

    def _need(self, changed: Mapping[str, object]) -> int:
        planned = self.plan(changed)
        return max(planned.peak_bytes, planned.reserved_bytes) if self._failed.on_device else _on_the_host(planned)


def _on_the_host(planned: Plan) -> int:
    """The peak with gaps between what comes and goes."""
    stays = sum(planned.parts.get(part, 0) for part in ("parameters", "gradients", "optimizer"))
    is_mapped = any(one.size >= _LIMITS.mapped_bytes for one in planned.requests)
    gaps_frac = _LIMITS.gaps_frac if is_mapped else _LIMITS.gaps_of_heap_frac
    return planned.peak_bytes + round(gaps_frac * (planned.peak_bytes - stays))


def _with_peak(change: Change, peak_bytes: int) -> Change:
    return replace(change, predicted_bytes=peak_bytes)


def _argmax(logits: object, labels: object) -> object:
    """What the remedy tells to write; of a model that gives more, of its logits."""
    first = logits[0] if isinstance(logits, list | tuple) else logits
    return first.argmax(-1) if isinstance(first, torch.Tensor) else first


def _loading(
    load: Callable[[], Loader], sizes: Mapping[str, tuple[int, ...]], was: int | None, length: int | None
) -> Loader:
    """The trainer's loader, whose batches have these sizes but for their rows; and rows of another length."""
    loader = load()
    inner: Trainer = getattr(loader, "base_dataloader", loader)
    collate = inner.collate_fn
    inner.collate_fn = lambda samples: _sized(collate(samples), sizes, was, length)
    return loader


def _sized(batch: object, sizes: Mapping[str, tuple[int, ...]], was: int | None, length: int | None) -> object:
    named = batch if isinstance(batch, Mapping) else {}
    pairs = [(tensor.shape, sizes[name]) for name, tensor in named.items() if name in sizes]
    sides = {old: new for shape, told in pairs for old, new in zip(shape[1:], told[1:], strict=False) if old != new}
    if length is not None and was is not None:
        sides = {old: length if new == was else new for old, new in sides.items()} | (
            {} if was in sides else {was: length}
        )

    def change(tensor: torch.Tensor) -> torch.Tensor:
        for place in range(1, tensor.dim()):
            old = tensor.size(place)
            if old in sides:
                tensor = tensor.index_select(place, torch.arange(sides[old]) % old)
        return tensor

    return tree_map_only(torch.Tensor, change, batch) if sides else batch
