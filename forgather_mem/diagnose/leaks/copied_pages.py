"""Pages that forked data workers share with the main process and copy, because reading an object writes to its page."""

from __future__ import annotations

from dataclasses import dataclass

from forgather_mem.growth.trend import GROWTH, Series
from forgather_mem.probes.workers import Children
from forgather_mem.system.time_budget import BUDGET_FRAC, TimeBudget
from forgather_mem.units import MIB, format_bytes


class CopyLimits:
    """When copied pages are told.

    Attributes:
        early: So many readings come soon, in `early_frac` of the time.
        fewest_points: Of fewer nothing is said.
        least_bytes: In the later half: what is imported and called for the first time copies pages, too.
    """

    early = 10
    fewest_points = 5
    least_bytes = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What the data workers have copied of the pages they inherited.

    Attributes:
        per_step: Growth in the later half of what was seen, in bytes a step of all workers together.
        bytes: So much is copied now.
        most_bytes: So much is still shared and can be copied, all workers together.
        num_workers: Number of workers.
        since_step: The step at which they were first seen.
    """

    per_step: float
    bytes: int
    most_bytes: int
    num_workers: int
    since_step: int

    @property
    def why(self) -> str:
        """What happens, in words.

        >>> Copied(per_step=4e5, bytes=9 * MIB, most_bytes=90 * MIB, num_workers=2, since_step=8).why[-61:]
        'written: 390.6 KiB a step, at most 90.0 MiB more in 2 workers'
        """
        many = f"{self.num_workers} worker{'s' * (self.num_workers != 1)}"
        return (
            "data workers copy pages they share with the main process as reference counts are written: "
            f"{format_bytes(self.per_step)} a step, at most {format_bytes(self.most_bytes)} more in {many}"
        )


class CopiedPages:
    """Reads what one data worker has copied, for all of them: 0.2 ms, plus 10 to 30 ms a GiB, within a time budget.

    Attributes:
        each_bytes: What the worker that was read last had copied.
    """

    def __init__(self, every_s: float = 0.25, early_frac: float = 0.05) -> None:
        # The first readings come soon, in this fraction of the time, so that a run of a minute is judged, too
        self._pace = TimeBudget(every_s, budget_frac=early_frac)
        self._readings = 0
        self._children = Children()
        self._workers: tuple[str, ...] = ()
        self._series, self._shared_bytes = Series(), 0
        self.each_bytes = 0
        self._ended: Copied | None = None

    def read(self, step: int) -> None:
        """Read, if it is due and there are workers."""
        if not self._pace.due():
            return
        self._pace.take(self._read, step)
        self._readings += 1
        if self._readings == CopyLimits.early:
            self._pace.budget_frac = BUDGET_FRAC

    def read_last(self, step: int) -> None:
        """Read once more at the end, whatever it costs: on a busy machine the budget has left out the later part."""
        if self._series.points and self._series.points[-1][0] < step:
            self._read(step)

    def found(self) -> Copied | None:
        """What the workers copy step by step; of workers that have ended, if that is what was seen longest."""
        now, ended = self._judged(), self._ended
        return ended if now is None else now

    def _read(self, step: int) -> dict[str, float]:
        worker, pids = self._children.one_worker()
        if pids != self._workers:  # a new pass: new workers have copied nothing yet
            self._ended = self._judged() or self._ended
            self._workers, self._series = pids, Series()
        if worker is not None:
            self._series.add(step, len(pids) * worker.copied_bytes)
            self._shared_bytes = len(pids) * worker.shared_bytes
            self.each_bytes = worker.copied_bytes
        return {}

    def _judged(self) -> Copied | None:
        points = self._series.points
        if len(points) < CopyLimits.fewest_points:
            return None
        step, half = points[-1][0], points[len(points) // 2]
        grown = points[-1][1] - half[1]
        if step <= half[0] or grown < max(CopyLimits.least_bytes, 4 * GROWTH.floor_bytes * (step - half[0])):
            return None
        return Copied(
            per_step=grown / (step - half[0]),
            bytes=int(points[-1][1]),
            most_bytes=self._shared_bytes,
            num_workers=len(self._workers),
            since_step=points[0][0],
        )
