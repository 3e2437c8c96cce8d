"""What a pass with a batch takes at its peak, by what earlier batches have saved or else by how far it had come."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from forgather_mem.diagnose.oom.context import StepUse
from forgather_mem.diagnose.oom.failure import Failure

# The peak of a batch's memory: what it saves in the forward pass, and as much again while gradients pass through it. In
# seven trainings what this predicts for four times the batch was 6 % too low to 7 % too high; with activation
# checkpointing, where a layer is computed again, 19 % too low.
PEAK_OF_SAVED = 2
_OF_CHANCE = 1.1  # a prediction may be so much too low
# For samples that are so many times as long as all that were measured: their squares may not have shown until then
_FAR, _OF_CHANCE_FAR = 4, 1.7
# An evaluation saves nothing: its peak is about what a forward pass of the training has at its end.
_PEAK_IN = {"forward": PEAK_OF_SAVED, "backward": PEAK_OF_SAVED, "evaluate": 1}
# How much more than at its failure a phase takes until its end: an estimate, since this is never observed.
UNSEEN = {"forward": 2.0, "backward": 1.5}
_UNSEEN_ELSE = 2.0
_UNSEEN_AT_THE_BEGIN = 4.0  # of a forward pass: the first large tensor was not to be had
UNSEEN_DATA = 2.5  # of the array that could not be allocated: there are others, and copies
_PASSING_FRAC = 0.5
_ENOUGH_LENGTHS = 4
_FEWEST_COMPARED = 8
_COMPARED_DIMS = 3  # with one more they are as many channels as rows
_ITEM_BYTES = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A micro-batch, and the number of them in a step; its length is in tokens or in numbers."""

    rows: int
    length: int | None
    accumulation: int = 1

    @property
    def tokens(self) -> int:
        return self.rows * (self.length or 1)

    @property
    def squares(self) -> int:
        return self.tokens * (self.length or 1)


class PassPeak:
    """The peak of the phase that failed, beyond what is in memory without its batch.

    Attributes:
        taken_bytes: What its batch had taken when it failed.
    """

    def __init__(self, failure: Failure, uses: Sequence[StepUse]) -> None:
        self._failure = failure
        # What rows that are compared with each other take does not go with their number
        is_larger = (failure.rows or 0) > max((use.rows for use in uses), default=0)
        self._saved = None if is_larger and compares_rows(failure) else saved_by_shape(uses)
        self._longest = max((use.width or 1 for use in uses if use.saved_bytes), default=1)
        self._is_as_ever = any((use.rows, use.width) == (failure.rows, failure.width) for use in uses)
        parts, live = failure.parts, failure.live_bytes
        resident = parts.get("activations", parts.get("evaluation", 0))
        # A training step finds the gaps that the steps before have left, an evaluation's larger tensors don't
        is_live = failure.phase == "evaluate" and live is not None
        self.taken_bytes = 0 if failure.phase == "data" else live if is_live and live is not None else resident

    def needed(self, shape: BatchShape, failed: BatchShape) -> float | None:
        """Bytes for a batch of this shape; None if nothing was seen of the one that failed."""
        failure, taken, wanted = self._failure, self.taken_bytes, self._failure.requested_bytes or 0
        part = shape.tokens / failed.tokens
        if failure.phase == "data":
            return UNSEEN_DATA * wanted * part if wanted else None
        if not taken and not wanted:
            return None
        of_saved = self.of_saved(shape)
        if of_saved is None:
            return self._unseen() * (taken + wanted) * part
        if failure.phase == "evaluate":
            of_loss = wanted if failure.part_done is not None else 0  # it makes as much of the logits
            return max((taken + wanted + of_loss) * part, of_saved)
        # Early layers tell less than what was measured, late ones about as much. What was asked for at once, if no
        # batch has saved as much for its size, is made and dropped beside that
        is_passing = wanted > _PASSING_FRAC * (self.of_saved(failed) or 0.0)
        times = self._unseen() if self._is_far(shape) else self._guess()
        # What a batch as ever had not asked for: if it is larger than all of the pass, so are its gradients
        begins = self._is_as_ever and failure.phase == "forward" and taken < wanted
        passing = is_passing * (_UNSEEN_AT_THE_BEGIN if begins else 1.0) * wanted
        return max(times * (taken + wanted) * part, of_saved + passing * part)

    def of_saved(self, shape: BatchShape) -> float | None:
        """The same, from what batches of earlier steps have saved; None if unknown."""
        times = _PEAK_IN.get(self._failure.phase)
        if self._saved is None or times is None:
            return None
        chance = _OF_CHANCE_FAR if self._is_far(shape) else _OF_CHANCE
        return chance * times * (self._saved[0] * shape.tokens + self._saved[1] * shape.squares)

    def _is_far(self, shape: BatchShape) -> bool:
        """Whether its samples are far longer than all that were measured, and no squares have shown."""
        return (shape.length or 1) > _FAR * self._longest and not (self._saved or (0, 0))[1]

    def _unseen(self) -> float:
        """The ratio of a whole pass to the part before the failure: by the layer that failed, else a guess."""
        failure = self._failure
        if failure.phase == "forward" and failure.part_done is not None:
            return PEAK_OF_SAVED / failure.part_done
        return self._guess()

    def _guess(self) -> float:
        failure = self._failure
        if failure.phase == "forward" and self.taken_bytes < (failure.requested_bytes or 0):
            return _UNSEEN_AT_THE_BEGIN
        return UNSEEN.get(failure.phase, _UNSEEN_ELSE)


def saved_by_shape(uses: Sequence[StepUse]) -> tuple[float, float] | None:
    """Bytes that a token saves for the backward pass, and what it saves for each token beside it in its sample.

    The C library's own account of what is allocated: freed memory that it keeps is not in it. None without such
    numbers.

    >>> uses = [StepUse(step=1, rows=1, length=n, phases={}, saved_bytes=50 * n + 3 * n * n) for n in (10, 20, 40, 80)]
    >>> [round(number) for number in saved_by_shape(uses) or ()]
    [50, 3]
    """
    shapes = [(BatchShape(use.rows, use.width), use.saved_bytes) for use in uses if use.saved_bytes and use.rows]
    if not shapes:
        return None
    alike = max(saved / shape.tokens for shape, saved in shapes), 0.0
    if len({shape.length for shape, _ in shapes}) < _ENOUGH_LENGTHS:
        return alike
    # What a token saves, over the length of its sample: a line
    lengths = [float(shape.length or 1) for shape, _ in shapes]
    line = statistics.linear_regression(lengths, [saved / shape.tokens for shape, saved in shapes])
    if line.slope <= 0 or line.intercept < 0:
        return alike
    return line.intercept, line.slope


def compares_rows(failure: Failure) -> bool:
    """Whether what failed compares the rows of a batch with each other, as a contrastive loss does.

    Then the loss of its parts is another one than that of the whole.
    """
    rows, wanted = failure.rows, failure.requested_bytes
    if rows is None or rows < _FEWEST_COMPARED or rows == failure.length or rows in failure.sample:
        return False
    operands = failure.operation.operands if failure.operation is not None else ()
    squares = any(shape[:2] == (rows, rows) and len(shape) <= _COMPARED_DIMS for _, shape in operands)
    return squares or wanted in {item * rows**power for item in _ITEM_BYTES for power in (2, 3)}
