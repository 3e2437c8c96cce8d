"""What a pass with a batch takes at its peak, by what earlier batches have saved or else by how far it had come."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forgather_mem.diagnose.oom.context import StepUse

if TYPE_CHECKING:  # loaded when a failure is explained, not when a run is watched
    from forgather_mem.diagnose.oom.failure import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class PassThresholds:
    """What a pass takes beyond what was seen of it.

    Set on seven trainings whose batch was made four times as large: what is predicted for that was 6 % too low to 7 %
    too high, with activation checkpointing, where a layer is computed again, 19 % too low. What is unseen is an
    estimate, since it is never observed.

    Attributes:
        of_saved: The peak, in units of what the forward pass saves: as much again while gradients pass through it.
        of_saved_in_evaluation: The same of an evaluation, which saves nothing.
        chance, chance_far: A prediction may be so many times too low; for far longer samples than all that were
            measured, since their squares may not have shown until then.
        far: So many times as long they are.
        unseen, unseen_backward: How much more than at its failure a phase takes until its end.
        unseen_at_begin: The same of a forward pass whose first large tensor was not to be had.
        unseen_data: The same of an array of data: there are others, and copies.
        passing_frac: Of what a batch saves: a larger request is made and dropped beside that.
        enough_lengths: From so many lengths on there is a line over them.
        fewest_compared, most_dims: Rows that a loss compares with each other, and dimensions of the result; with one
            more they are as many channels as rows.
    """

    of_saved: float = 2.0
    of_saved_in_evaluation: float = 1.0
    chance: float = 1.1
    chance_far: float = 1.7
    far: float = 4.0
    unseen: float = 2.0
    unseen_backward: float = 1.5
    unseen_at_begin: float = 4.0
    unseen_data: float = 2.5
    passing_frac: float = 0.5
    enough_lengths: int = 4
    fewest_compared: int = 8
    most_dims: int = 3


PASS = PassThresholds()
_PEAK_IN = {"forward": PASS.of_saved, "backward": PASS.of_saved, "evaluate": PASS.of_saved_in_evaluation}
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
            return PASS.unseen_data * wanted * part if wanted else None
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
        is_passing = wanted > PASS.passing_frac * (self.of_saved(failed) or 0.0)
        times = self._unseen() if self._is_far(shape) else self._guess()
        # What a batch as ever had not asked for: if it is larger than all of the pass, so are its gradients
        begins = self._is_as_ever and failure.phase == "forward" and taken < wanted
        passing = is_passing * (PASS.unseen_at_begin if begins else 1.0) * wanted
        return max(times * (taken + wanted) * part, of_saved + passing * part)

    def of_saved(self, shape: BatchShape) -> float | None:
        """The same, from what batches of earlier steps have saved; None if unknown."""
        times = _PEAK_IN.get(self._failure.phase)
        if self._saved is None or times is None:
            return None
        chance = PASS.chance_far if self._is_far(shape) else PASS.chance
        return chance * times * (self._saved[0] * shape.tokens + self._saved[1] * shape.squares)

    def _is_far(self, shape: BatchShape) -> bool:
        """Whether its samples are far longer than all that were measured, and no squares have shown."""
        return (shape.length or 1) > PASS.far * self._longest and not (self._saved or (0, 0))[1]

    def _unseen(self) -> float:
        """The ratio of a whole pass to the part before the failure: by the layer that failed, else a guess."""
        failure = self._failure
        if failure.phase == "forward" and failure.part_done is not None:
            return PASS.of_saved / failure.part_done
        return self._guess()

    def _guess(self) -> float:
        failure = self._failure
        if failure.phase == "forward" and self.taken_bytes < (failure.requested_bytes or 0):
            return PASS.unseen_at_begin
        return PASS.unseen_backward if failure.phase == "backward" else PASS.unseen


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
    if len({shape.length for shape, _ in shapes}) < PASS.enough_lengths:
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
    if rows is None or rows < PASS.fewest_compared or rows == failure.length or rows in failure.sample:
        return False
    operands = failure.operation.operands if failure.operation is not None else ()
    squares = any(shape[:2] == (rows, rows) and len(shape) <= PASS.most_dims for _, shape in operands)
    return squares or wanted in {item * rows**power for item in _ITEM_BYTES for power in (2, 3)}
