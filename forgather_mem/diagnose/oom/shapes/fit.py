"""Fits a phase's memory to the shapes of the batches seen in a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from forgather_mem.diagnose.oom.context import StepUse


@dataclass(frozen=True, slots=True, kw_only=True)
class FitThresholds:
    """When a line through the steps so far is believed.

    Attributes:
        fewest_points, fewest_shapes: Steps, and shapes of their batches.
        least_variety: The largest batch must have this many times the tokens of the smallest, or a line means nothing.
        quadratic_shapes, quadratic_f: Shapes, and the F value, from which the square is kept: far more than one more
            factor explains by chance.
        worst_scatter, least_scatter: Of the range that the batches explain: above it there is no line; below it are
            pages and blocks of the allocator.
        rounds, huber: Of reweighting, and the deviations, in units of the scatter, from which a point counts less.
    """

    fewest_points: int = 5
    fewest_shapes: int = 3
    least_variety: float = 1.2
    quadratic_shapes: int = 6
    quadratic_f: float = 25.0
    worst_scatter: float = 0.25
    least_scatter: float = 1e-3
    rounds: int = 12
    huber: float = 1.5


_FIT = FitThresholds()


Row = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bytes, with their likely bounds."""

    bytes: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFit:
    """bytes = fixed + per_token x rows x length (+ per_square x rows x length^2).

    Attributes:
        phase: The phase.
        fixed_bytes: The part that does not depend on the batch.
        per_token_bytes, per_square_bytes: What one token adds, and one pair of tokens of a row.
        num_steps, num_shapes: Number of steps and batch shapes in the fit.
        most_tokens: Tokens of the largest batch among them.
        scatter_bytes: The typical residual.
        highest_off_bytes: The largest positive residual, without rare outliers.
    """

    phase: str
    fixed_bytes: float
    per_token_bytes: float
    per_square_bytes: float
    num_steps: int
    num_shapes: int
    most_tokens: float
    scatter_bytes: float
    highest_off_bytes: float
    _scale: Row
    _inverse: tuple[Row, ...]

    @classmethod
    def through(
        cls, phase: str, fixed_bytes: float, per_token_bytes: float, *, num_steps: int, most_tokens: float
    ) -> PhaseFit:
        """A line that is known, not fitted."""
        return cls(
            phase=phase,
            fixed_bytes=fixed_bytes,
            per_token_bytes=per_token_bytes,
            per_square_bytes=0.0,
            num_steps=num_steps,
            num_shapes=1,
            most_tokens=most_tokens,
            scatter_bytes=0.0,
            highest_off_bytes=0.0,
            _scale=(1.0, 1.0),
            _inverse=((0.0, 0.0), (0.0, 0.0)),
        )

    def at(self, rows: float, length: float | None) -> Estimate:
        """The estimate for a batch of this shape."""
        terms = _terms(rows, length, len(self._scale))
        factors = (self.fixed_bytes, self.per_token_bytes, self.per_square_bytes)
        middle = sum(factor * term for factor, term in zip(factors, terms, strict=False))
        scaled = [term / scale for term, scale in zip(terms, self._scale, strict=True)]
        variance = sum(
            one * self._inverse[i][j] * other for i, one in enumerate(scaled) for j, other in enumerate(scaled)
        )
        off = 2 * self.scatter_bytes * math.sqrt(max(0.0, variance))
        return Estimate(bytes=middle, low=middle - off, high=middle + off + self.highest_off_bytes)


def fits_of(uses: Sequence[StepUse], *, retains: bool) -> dict[str, PhaseFit]:
    """A fit for each phase with enough data.

    Args:
        uses: Memory use of the steps.
        retains: Whether freed memory still counts, as in resident memory: then only batches larger than all before them
            show what they take.
    """
    ordered = sorted(uses, key=lambda use: use.step)
    phases = {phase for use in ordered for phase in use.phases}
    fits = {}
    for phase in sorted(phases):
        having = [use for use in ordered if phase in use.phases]
        kept = records(having) if retains else having
        if len(having) > _FIT.fewest_points:
            kept = [use for use in kept if use is not ordered[0]]  # in that step the optimizer had no state
        points = [(use.rows, use.width, float(use.phases[phase])) for use in kept]
        found = fit_phase(phase, points, fewest=_FIT.fewest_shapes if retains else _FIT.fewest_points)
        if found is not None:
            fits[phase] = found
    return fits


def fit_phase(
    phase: str, points: Sequence[tuple[int, int | None, float]], fewest: int = _FIT.fewest_points
) -> PhaseFit | None:
    """The line through these (rows, length, bytes); None if they are too few, too similar, or not on a line.

    Outliers count little (iteratively reweighted least squares with Huber weights).

    >>> fit = fit_phase("forward", [(8, length, 1e9 + 1e5 * 8 * length) for length in range(100, 200, 10)])
    >>> round(fit.at(8, 400).bytes / 1e9, 2)
    1.32
    """
    shapes = {(rows, length) for rows, length, _ in points}
    tokens = [_tokens(rows, length) for rows, length, _ in points]
    if len(points) < fewest or len({_tokens(*shape) for shape in shapes}) < _FIT.fewest_shapes:
        return None
    if max(tokens) < _FIT.least_variety * min(tokens):
        return None
    sizes = [size for _, _, size in points]
    straight = _solve([_terms(rows, length, 2) for rows, length, _ in points], sizes)
    if straight is None:
        return None
    chosen = straight
    lengths = {length for _, length in shapes if length is not None}
    if len(shapes) >= _FIT.quadratic_shapes and len(points) > 2 * _FIT.fewest_points and len(lengths) > 2:
        bent = _solve([_terms(rows, length, 3) for rows, length, _ in points], sizes)
        if bent is not None and bent.factors[2] > 0 <= bent.factors[1] and _much_better(bent, straight):
            chosen = bent
    factors = chosen.factors
    if factors[1] < 0:  # larger batches took less: the batch contributes only noise
        level = statistics.median(sizes)
        chosen = _Solution((level, 0.0), [size - level for size in sizes], straight.scale, straight.inverse)
        factors = chosen.factors
    grown = factors[1] * (max(tokens) - min(tokens))
    scatter = max(_scatter(chosen.off), _FIT.least_scatter * abs(grown))
    if scatter > _FIT.worst_scatter * grown and scatter > 0.01 * abs(factors[0]):
        return None
    above = sorted(chosen.off)
    return PhaseFit(
        phase=phase,
        fixed_bytes=factors[0],
        per_token_bytes=factors[1],
        per_square_bytes=factors[2] if len(factors) > 2 else 0.0,
        num_steps=len(points),
        num_shapes=len(shapes),
        most_tokens=max(tokens),
        scatter_bytes=scatter,
        highest_off_bytes=max(0.0, above[math.ceil(0.99 * len(above)) - 1]),
        _scale=chosen.scale,
        _inverse=chosen.inverse,
    )


def binding(fits: Mapping[str, PhaseFit], rows: float, length: float | None) -> tuple[str, Estimate] | None:
    """The phase with the highest use for such a batch, and that use; None without a fit."""
    estimates = {phase: fit.at(rows, length) for phase, fit in fits.items()}
    if not estimates:
        return None
    phase = max(estimates, key=lambda name: estimates[name].high)
    return phase, estimates[phase]


def largest_that_fits(fits_it: Callable[[int], bool], most: int) -> int:
    """The largest integer up to `most` that fits, 0 for none; `fits_it` must be monotonic."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits_it(middle):
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class _Solution:
    factors: Row
    off: list[float]
    scale: Row
    inverse: tuple[Row, ...]


def _tokens(rows: float, length: float | None) -> float:
    return rows * (1 if length is None else length)


def _terms(rows: float, length: float | None, count: int) -> list[float]:
    tokens = _tokens(rows, length)
    return [1.0, tokens, tokens * (length or 1)][:count]


def records(uses: Sequence[StepUse]) -> list[StepUse]:
    """The points with more tokens than all before: where freed memory still counts, only they show their size."""
    larger = []
    most = 0.0
    for use in uses:
        if _tokens(use.rows, use.width) > most:
            most = _tokens(use.rows, use.width)
            larger.append(use)
    return larger


def _solve(rows: Sequence[Sequence[float]], sizes: Sequence[float]) -> _Solution | None:
    """Least squares, reweighted so that outliers count little.

    In lists, since numpy's LAPACK asks for 32 MiB when it is first called, and ends the process if it can't have them.
    """
    count = len(rows[0])
    scale = tuple(max(abs(row[column]) for row in rows) or 1.0 for column in range(count))
    scaled = [[value / size for value, size in zip(row, scale, strict=True)] for row in rows]
    weights = [1.0] * len(rows)
    factors: list[float] = []
    off: list[float] = []
    inverse: tuple[Row, ...] | None = None
    for _ in range(_FIT.rounds):
        normal = [
            [sum(w * row[i] * row[j] for w, row in zip(weights, scaled, strict=True)) for j in range(count)]
            for i in range(count)
        ]
        inverse = _inverted(normal)
        if inverse is None:
            return None
        right = [
            sum(w * row[i] * size for w, row, size in zip(weights, scaled, sizes, strict=True)) for i in range(count)
        ]
        factors = [sum(a * b for a, b in zip(line, right, strict=True)) for line in inverse]
        off = [
            size - sum(f * value for f, value in zip(factors, row, strict=True))
            for size, row in zip(sizes, scaled, strict=True)
        ]
        bound = _FIT.huber * _scatter(off)
        if bound <= 0:
            break
        weights = [1.0 if abs(value) <= bound else bound / abs(value) for value in off]
    assert inverse is not None
    return _Solution(tuple(f / s for f, s in zip(factors, scale, strict=True)), off, scale, inverse)


def _inverted(matrix: Sequence[Sequence[float]]) -> tuple[Row, ...] | None:
    """Gauss-Jordan elimination; None if the columns are linearly dependent."""
    count = len(matrix)
    work = [[*row, *(1.0 if i == j else 0.0 for j in range(count))] for i, row in enumerate(matrix)]
    for column in range(count):
        pivot = max(range(column, count), key=lambda row: abs(work[row][column]))
        if abs(work[pivot][column]) < 1e-9 * max(abs(matrix[i][i]) for i in range(count)):
            return None
        work[column], work[pivot] = work[pivot], work[column]
        head = work[column][column]
        work[column] = [value / head for value in work[column]]
        for row in range(count):
            if row != column:
                factor = work[row][column]
                work[row] = [value - factor * other for value, other in zip(work[row], work[column], strict=True)]
    return tuple(tuple(row[count:]) for row in work)


def _scatter(off: Iterable[float]) -> float:
    """The standard deviation estimated from the median of the deviations."""
    return 1.4826 * statistics.median(map(abs, off))


def _much_better(bent: _Solution, straight: _Solution) -> bool:
    """Whether the square explains more than chance would (an F test with bounded outliers)."""
    bound = 3 * _scatter(straight.off)

    def squares(solution: _Solution) -> float:
        return sum(min(abs(value), bound) ** 2 for value in solution.off)

    return (squares(straight) - squares(bent)) * (len(bent.off) - 3) > _FIT.quadratic_f * squares(bent)
