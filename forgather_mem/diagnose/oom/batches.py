"""Which batch would have fitted, judged from the steps' memory use or else from what was in memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forgather_mem.diagnose.oom.context import FREE_HEAP, RunSettings, StepUse
from forgather_mem.diagnose.oom.shapes.batch_shapes import Batch
from forgather_mem.diagnose.oom.shapes.fit import Estimate, PhaseFit, binding, fits_of, records
from forgather_mem.diagnose.oom.shapes.pass_peak import BatchShape, PassPeak
from forgather_mem.telemetry.events import STEP_PHASES

if TYPE_CHECKING:
    from forgather_mem.diagnose.oom.failure import Failure

KEPT_FREE_FRAC = 0.02  # of the capacity, beside what is predicted
_EVALUATION = frozenset({"evaluate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchThresholds:
    """What is believed of the batches before. Set on the scripts of tests/ooms, and what they were tuned with.

    Attributes:
        most_parts: Of a step.
        enough_shapes: Of batches, from which having no line means that there is no trend.
        far_times: As long as any sample before: far longer.
        nearly_times: An estimate from earlier batches may be so much too high.
        fewest_rising, fewest_lengths: Batches that become longer and longer, and how many lengths they have.
        still_of_request, still_of_request_backward: What a pass will still ask for, in units of what it asked for last:
            the backward pass makes a gradient as large, or more of the same.
    """

    most_parts: int = 4096
    enough_shapes: int = 4
    far_times: float = 4.0
    nearly_times: float = 1.15
    fewest_rising: int = 8
    fewest_lengths: int = 4
    still_of_request: float = 1.0
    still_of_request_backward: float = 0.25


_WHEN = BatchThresholds()
_STILL_OF_REQUEST = {"forward": _WHEN.still_of_request, "backward": _WHEN.still_of_request_backward}


def in_samples(failure: Failure, settings: RunSettings, uses: Sequence[StepUse]) -> tuple[Failure, Sequence[StepUse]]:
    """The failure and the uses with rows as the settings count them, however the model gets them.

    A model may get several rows for each sample of a Trainer's or a loader's batch, as one for each answer to a
    question, or all nodes of a graph: a sample is then so much longer.
    """
    if failure.phase not in STEP_PHASES or failure.rows is None:
        return failure, uses
    most = settings.arguments.get("per_device_train_batch_size") if settings.is_trainers else None
    if most is None and failure.operation is not None:
        most = failure.operation.loader_rows
    if not isinstance(most, int) or failure.rows <= most:
        return failure, uses
    length, each = _sample_length(failure.rows, failure.width, most), round(failure.rows / most)
    return replace(failure, batch=Batch(most, length), rows_each=each), [
        replace(use, rows=most, length=_sample_length(use.rows, use.width, most), sample=()) if use.rows > most else use
        for use in uses
    ]


def _sample_length(rows: int, length: int | None, samples: int) -> int:
    return round((length or 1) * rows / samples)


class Batches:
    """What batches take in this run.

    Attributes:
        fits: The fitted line of each phase that has one.
        capacity_bytes: Total capacity; None if unknown.
        known: Whether a prediction rests on a fit.
    """

    def __init__(self, failure: Failure, settings: RunSettings, uses: Sequence[StepUse]) -> None:
        self._failure = failure
        wanted = _EVALUATION if failure.phase == "evaluate" else STEP_PHASES
        measured = fits_of(uses, retains=failure.where == "host")
        self.fits: Mapping[str, PhaseFit] = {name: fit for name, fit in measured.items() if name in wanted}
        self.known = any(name != "optimizer" for name in self.fits)
        self.num_shapes = len({(use.rows, use.width) for use in uses})
        self.num_steps = len(uses)
        self.capacity_bytes = failure.capacity_bytes
        self._uses = [use for use in uses if not wanted.isdisjoint(use.phases)]
        self._telling = records(self._uses) if failure.where == "host" else self._uses
        arguments = settings.arguments
        self._accumulation = int(arguments.get("gradient_accumulation_steps") or 1)
        parts = failure.parts
        self._gradient_bytes = settings.trained_bytes or parts.get("parameters") or 0
        self._optimizer_bytes = settings.state_of(settings.optim) or settings.optimizer_bytes or 0
        self._peak = PassPeak(failure, uses)
        self._unseen_bytes = self._not_in_the_fit()

    def failed_shape(self, rows: int | None) -> BatchShape | None:
        """The micro-batch that did not fit."""
        rows = self._failure.rows or rows
        return None if not rows else BatchShape(rows, self._failure.width, self._accumulation)

    @property
    def longest(self) -> int | None:
        """Tokens or numbers of the longest sample to come; of the one that failed if that would not even fit alone."""
        width, times = self._failure.width, self._failure.times_ahead or 1.0
        if width is None or times <= 1:
            return width
        longest = math.ceil(width * times)
        alone = BatchShape(1, longest, self._accumulation * (self._failure.rows or 1))
        return longest if self.fits_in(alone) is not False else width

    @property
    def missing_bytes(self) -> int:
        """What gradients and the optimizer's state need beyond the capacity, whatever the batch; 0 if they fit."""
        failure = self._failure
        if failure.used_bytes is None or self.capacity_bytes is None:
            return 0
        free = failure.parts.get(FREE_HEAP, 0) + (0 if failure.census else failure.parts.get("other", 0))
        held = failure.used_bytes - self._peak.taken_bytes - free
        return max(0, held + self._still_to_come() - self.capacity_bytes)

    @property
    def rises(self) -> bool:
        """Whether samples become longer from batch to batch, and it is not known that the longest fits alone."""
        widths = [use.width or 0 for use in self._uses if use.step < self._failure.step]
        widths.append(self._failure.width or 0)
        is_sorted = all(one <= other for one, other in itertools.pairwise(widths))
        times = self._failure.times_ahead
        is_known = times is not None and (times <= 1 or self.longest != self._failure.width)
        is_enough = (
            len(widths) >= _WHEN.fewest_rising and len(set(widths)) >= _WHEN.fewest_lengths
        )  # a few are so by chance
        return not is_known and is_sorted and is_enough

    @property
    def is_far_longer(self) -> bool:
        """Whether the samples that failed were far longer than any before."""
        seen, failed = self.longest_seen(), self._failure.width
        return seen is not None and failed is not None and failed > _WHEN.far_times * seen

    @property
    def is_as_ever(self) -> bool:
        """Whether batches at least as large as the one that failed have succeeded."""
        failed = self.failed_shape(None)
        return failed is not None and self._seen(failed)

    @property
    def saved_bytes(self) -> int | None:
        """The most that a micro-batch of the steps before had saved for its backward pass; None if unknown."""
        before = [use for use in self._uses if use.step != self._failure.step]
        return max((use.saved_bytes for use in before if use.saved_bytes), default=None)

    def longest_seen(self, rows: int = 0) -> int | None:
        """The most tokens of a sample in the steps before, in batches of at least so many; None without any."""
        before = [use for use in self._uses if use.step < self._failure.step and use.rows >= rows]
        return max((use.width for use in before if use.width), default=None)

    def predicted(self, shape: BatchShape) -> Estimate | None:
        """The highest use with such batches; None if it can't be estimated."""
        if not self.known:
            return None
        bound = binding(self.fits, shape.rows, shape.length)
        assert bound is not None
        more: float = self._kept_gradients(shape)
        failed = self.failed_shape(None)
        if failed is not None and failed.tokens:
            more += self._unseen_bytes * shape.tokens / failed.tokens
        estimate = bound[1]
        seen = self._highest_seen(shape)  # a larger batch takes no less
        sizes = (estimate.bytes + more, estimate.low + more, estimate.high + more)
        middle, low, high = (max(seen, size) for size in sizes)
        return Estimate(bytes=middle, low=low, high=high)

    def fits_in(self, shape: BatchShape) -> bool | None:
        """Whether it fits with 2 % kept free; None if it can't be estimated."""
        estimate = self.predicted(shape)
        if estimate is not None and self.capacity_bytes is not None:
            most = (1 - KEPT_FREE_FRAC) * self.capacity_bytes
            least = self._least(shape) if self._peak.of_saved(shape) is not None else None
            return estimate.high <= most and (self._seen(shape) or least is None or least <= most)
        if self._seen(shape) and not self.is_as_ever:  # else this batch has gone well, too, before something changed
            return True
        least = self._least(shape)
        if least is None or self.capacity_bytes is None:
            return None
        return least <= (1 - KEPT_FREE_FRAC) * self.capacity_bytes

    def nearly_fits(self, shape: BatchShape) -> bool:
        """Whether it may fit, given that an estimate from earlier batches may be slightly too high."""
        least = self._least(shape) if self._peak.of_saved(shape) is not None else None
        return least is not None and least <= _WHEN.nearly_times * (self.capacity_bytes or 0)

    def smaller(self, rows: int) -> Iterator[BatchShape]:
        """The same step in smaller micro-batches, the largest first."""
        length, whole = self.longest, rows * self._accumulation
        for accumulation in range(self._accumulation + 1, min(whole, _WHEN.most_parts) + 1):
            step = whole // accumulation
            if whole % accumulation == 0 and (rows % step == 0 or rows & (rows - 1)):
                yield BatchShape(step, length, accumulation)

    def basis(self) -> str:
        """What the numbers are based on, for people."""
        if not self.known:
            shapes = f"{self.num_shapes} batch shape{'s' * (self.num_shapes != 1)}"
            steps = f"{self.num_steps:,} step{'s' * (self.num_steps != 1)}"
            trend = " show no trend" if self.num_shapes >= _WHEN.enough_shapes else ""
            return f"not measured: {shapes} in {steps}{trend}" if self.num_steps else "not measured"
        fit = next(fit for name, fit in self.fits.items() if name != "optimizer")
        line = "curve" if any(fit.per_square_bytes for fit in self.fits.values()) else "line"
        return f"{line} fitted to {fit.num_steps:,} steps, {fit.num_shapes:,} batch shapes; keeps 2 % free"

    def _highest_seen(self, shape: BatchShape) -> float:
        """The highest use of the batches that were no larger."""
        smaller = [
            use
            for use in self._telling
            if use.step < self._failure.step
            and use.rows * (use.width or 1) <= shape.tokens
            and use.rows * (use.width or 1) ** 2 <= shape.squares
        ]
        phases = (size for use in smaller for phase, size in use.phases.items() if phase in self.fits)
        return max(phases, default=0)

    def _not_in_the_fit(self) -> float:
        """What the failing batch must have taken above the fit: temporaries inside a phase."""
        failed = self.failed_shape(None)
        if not self.known or failed is None or self._failure.used_bytes is None:
            return 0.0
        bound = binding(self.fits, failed.rows, failed.length)
        assert bound is not None
        still = _STILL_OF_REQUEST.get(self._failure.phase, 0.0)
        wanted = (1 + still) * (self._failure.requested_bytes or 0)
        return max(0.0, self._failure.used_bytes + wanted - bound[1].bytes)

    def _kept_gradients(self, shape: BatchShape) -> int:
        """Bytes of the gradients of the first micro-batch, which are in memory from the second one on."""
        return self._gradient_bytes if self._begins_to_accumulate(shape) else 0

    def _begins_to_accumulate(self, shape: BatchShape) -> bool:
        return self._failure.phase != "evaluate" and self._accumulation == 1 and shape.accumulation > 1

    def _seen(self, shape: BatchShape) -> bool:
        """Whether batches at least as large have succeeded, and gradients kept beside them would have fitted."""
        if self._begins_to_accumulate(shape) and self.is_as_ever:  # something else has grown
            return False
        first = min((use.step for use in self._uses), default=0)  # in that step the optimizer had no state
        most, kept = (1 - KEPT_FREE_FRAC) * (self.capacity_bytes or 0), self._kept_gradients(shape)
        fitted = [
            BatchShape(use.rows, use.width)
            for use in self._uses
            if first < use.step != self._failure.step and (not kept or max(use.phases.values()) + kept <= most)
        ]
        return any(done.tokens >= shape.tokens and done.squares >= shape.squares for done in fitted)

    def _least(self, shape: BatchShape) -> float | None:
        """A lower bound from what was in memory at the failure; the rest of the phase is an estimate."""
        failed = self.failed_shape(shape.rows)
        if self._failure.used_bytes is None or failed is None or not failed.tokens:
            return None
        needed = self._peak.needed(shape, failed)
        is_guess = self._failure.phase != "data" and not self._peak.taken_bytes and not self._uses
        if needed is None or is_guess:
            return None
        return self._failure.used_bytes - self._peak.taken_bytes + self._still_to_come() + needed

    def _still_to_come(self) -> int:
        """What a later step holds besides its activations: gradients and optimizer state."""
        failure = self._failure
        if failure.phase not in ("forward", "backward", "data"):
            return 0
        missing = max(0, self._gradient_bytes - failure.parts.get("gradients", 0))
        return missing + (0 if failure.parts.get("optimizer") else self._optimizer_bytes)
