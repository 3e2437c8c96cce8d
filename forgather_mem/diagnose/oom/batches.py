"""Which batch would have fitted, judged from the steps' memory use or else from what was in memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from forgather_mem.diagnose.oom.context import FailureContext, RunSettings, StepUse
from forgather_mem.diagnose.oom.fit import Estimate, PhaseFit, binding, fits_of, records
from forgather_mem.telemetry.events import STEP_PHASES

_MOST_PARTS = 4096
KEPT_FREE_FRAC = 0.02
# These phases decide whether a batch fits; later ones only hold what the step leaves.
# How much more than at its failure a phase takes until its end: an estimate, since this is never observed.
UNSEEN = {"forward": 2.0, "backward": 1.25}
_UNSEEN_ELSE = 1.5
# The peak of a batch's memory: what it saves in the forward pass, and as much again while gradients pass through it. In
# seven trainings what this predicts for four times the batch was 6 % too low to 7 % too high; with activation
# checkpointing, where a layer is computed again, 19 % too low.
PEAK_OF_SAVED = 2
_UNSEEN_AT_THE_BEGIN = 4.0  # of a forward pass: the first large tensor was not to be had
_STILL_OF_REQUEST = {"forward": 1.0, "backward": 0.25}
UNSEEN_DATA = 2.5  # of the array that could not be allocated: there are others, and copies
_EVALUATION = frozenset({"evaluate"})
_ENOUGH_SHAPES = 4
_FAR = 4.0  # times as long as any sample before


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A micro-batch, and the number of them in a step."""

    rows: int
    length: int | None
    accumulation: int = 1

    @property
    def tokens(self) -> int:
        return self.rows * (self.length or 1)

    @property
    def squares(self) -> int:
        return self.tokens * (self.length or 1)


def in_samples(
    failure: FailureContext, settings: RunSettings, uses: Sequence[StepUse]
) -> tuple[FailureContext, Sequence[StepUse]]:
    """Both with rows that are what the settings count, however the model gets them.

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
    failed = replace(failure, rows=most, length=_sample_length(failure.rows, failure.length, most))
    return failed, [
        replace(use, rows=most, length=_sample_length(use.rows, use.length, most)) if use.rows > most else use
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

    def __init__(self, failure: FailureContext, settings: RunSettings, uses: Sequence[StepUse]) -> None:
        self._failure = failure
        wanted = _EVALUATION if failure.phase == "evaluate" else STEP_PHASES
        measured = fits_of(uses, retains=failure.where == "host")
        self.fits: Mapping[str, PhaseFit] = {name: fit for name, fit in measured.items() if name in wanted}
        self.known = any(name != "optimizer" for name in self.fits)
        self.num_shapes = len({(use.rows, use.length) for use in uses})
        self.num_steps = len(uses)
        self.capacity_bytes = failure.capacity_bytes
        self._uses = [use for use in uses if not wanted.isdisjoint(use.phases)]
        self._telling = records(self._uses) if failure.where == "host" else self._uses
        arguments = settings.arguments
        self._accumulation = int(arguments.get("gradient_accumulation_steps") or 1)
        parts = failure.parts
        self._gradient_bytes = settings.trained_bytes or parts.get("gradients") or parts.get("parameters") or 0
        self._optimizer_bytes = settings.state_of(settings.optim) or 0
        self._saved = saved_by_shape(uses)
        self._unseen_bytes = self._not_in_the_fit()

    def failed_shape(self, rows: int | None) -> BatchShape | None:
        """The micro-batch that did not fit."""
        rows = self._failure.rows or rows
        return None if not rows else BatchShape(rows, self._failure.length, self._accumulation)

    @property
    def is_far_longer(self) -> bool:
        """Whether the samples that failed were far longer than any before."""
        seen, failed = self.longest_seen(), self._failure.length
        return seen is not None and failed is not None and failed > _FAR * seen

    @property
    def is_as_ever(self) -> bool:
        """Whether batches at least as large as the one that failed have gone well."""
        failed = self.failed_shape(None)
        return failed is not None and self._seen(failed)

    @property
    def saved_bytes(self) -> int | None:
        """The most that a micro-batch of the steps before had saved for its backward pass; None if unknown."""
        return max((use.saved_bytes for use in self._uses if use.saved_bytes), default=None)

    def longest_seen(self, rows: int = 0) -> int | None:
        """The most tokens of a sample in the steps before, in batches of at least so many; None without any."""
        before = [use for use in self._uses if use.step < self._failure.step and use.rows >= rows]
        return max((use.length for use in before if use.length), default=None)

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
            return estimate.high <= (1 - KEPT_FREE_FRAC) * self.capacity_bytes
        if self._seen(shape):
            return True
        least = self._least(shape)
        if least is None or self.capacity_bytes is None:
            return None
        return least <= (1 - KEPT_FREE_FRAC) * self.capacity_bytes

    def smaller(self, rows: int) -> Iterator[BatchShape]:
        """The same step in smaller micro-batches, the largest first."""
        length, whole = self._failure.length, rows * self._accumulation
        for accumulation in range(self._accumulation + 1, min(whole, _MOST_PARTS) + 1):
            step = whole // accumulation
            if whole % accumulation == 0 and (rows % step == 0 or rows & (rows - 1)):
                yield BatchShape(step, length, accumulation)

    def basis(self) -> str:
        """What the numbers are based on, for people."""
        if not self.known:
            shapes = f"{self.num_shapes} batch shape{'s' * (self.num_shapes != 1)}"
            steps = f"{self.num_steps:,} step{'s' * (self.num_steps != 1)}"
            trend = " show no trend" if self.num_shapes >= _ENOUGH_SHAPES else ""
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
            and use.rows * (use.length or 1) <= shape.tokens
            and use.rows * (use.length or 1) ** 2 <= shape.squares
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
        # The backward pass makes a gradient as large as what the forward pass could not even have, or more of the same
        still = _STILL_OF_REQUEST.get(self._failure.phase, 0.0)
        wanted = (1 + still) * (self._failure.requested_bytes or 0)
        return max(0.0, self._failure.used_bytes + wanted - bound[1].bytes)

    def _kept_gradients(self, shape: BatchShape) -> int:
        """Gradients of the first micro-batch, which are in memory from the second one on."""
        return self._gradient_bytes if self._begins_to_accumulate(shape) else 0

    def _begins_to_accumulate(self, shape: BatchShape) -> bool:
        return self._failure.phase != "evaluate" and self._accumulation == 1 and shape.accumulation > 1

    def _seen(self, shape: BatchShape) -> bool:
        """Whether batches at least as large have succeeded."""
        if self._begins_to_accumulate(shape):
            return False
        first = min((use.step for use in self._uses), default=0)  # in that step the optimizer had no state
        fitted = [BatchShape(use.rows, use.length) for use in self._uses if first < use.step != self._failure.step]
        return any(done.tokens >= shape.tokens and done.squares >= shape.squares for done in fitted)

    def _least(self, shape: BatchShape) -> float | None:
        """A lower bound from what was in memory at the failure; the rest of the phase is an estimate."""
        failure, failed = self._failure, self.failed_shape(shape.rows)
        activations = failure.parts.get("activations", failure.parts.get("evaluation", 0))
        requested = failure.requested_bytes or 0
        if failure.used_bytes is None or failed is None or not failed.tokens:
            return None
        if failure.phase == "data" and failure.requested_bytes:
            return failure.used_bytes + UNSEEN_DATA * failure.requested_bytes * shape.tokens / failed.tokens
        if not activations and not (requested and self._uses):
            return None
        unseen = UNSEEN.get(failure.phase, _UNSEEN_ELSE)
        if activations < requested and failure.phase == "forward":
            unseen = _UNSEEN_AT_THE_BEGIN
        needed = unseen * (activations + requested) * shape.tokens / failed.tokens
        if failure.phase in ("forward", "backward") and self._saved is not None:
            needed = max(needed, PEAK_OF_SAVED * (self._saved[0] * shape.tokens + self._saved[1] * shape.squares))
        return failure.used_bytes - activations + self._still_to_come() + needed

    def _still_to_come(self) -> int:
        """What a later step holds besides its activations: gradients and optimizer state."""
        failure = self._failure
        if failure.phase not in ("forward", "backward", "data"):
            return 0
        missing = max(0, self._gradient_bytes - failure.parts.get("gradients", 0))
        return missing + (0 if failure.parts.get("optimizer") else self._optimizer_bytes)


def saved_by_shape(uses: Sequence[StepUse]) -> tuple[float, float] | None:
    """Bytes that a token saves for the backward pass, and what it saves for each token beside it in its sample.

    The C library's own account of what is allocated: freed memory that it keeps is not in it. None without such
    numbers.

    >>> uses = [StepUse(step=1, rows=1, length=n, phases={}, saved_bytes=50 * n + 3 * n * n) for n in (10, 20, 40, 80)]
    >>> [round(number) for number in saved_by_shape(uses) or ()]
    [50, 3]
    """
    shapes = [(BatchShape(use.rows, use.length), use.saved_bytes) for use in uses if use.saved_bytes and use.rows]
    if not shapes:
        return None
    alike = max(saved / shape.tokens for shape, saved in shapes), 0.0
    if len({shape.length for shape, _ in shapes}) < _ENOUGH_SHAPES:
        return alike
    # What a token saves, over the length of its sample: a line
    lengths = [float(shape.length or 1) for shape, _ in shapes]
    line = statistics.linear_regression(lengths, [saved / shape.tokens for shape, saved in shapes])
    if line.slope <= 0 or line.intercept < 0:
        return alike
    return line.intercept, line.slope
