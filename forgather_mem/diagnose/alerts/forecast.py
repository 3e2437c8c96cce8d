"""Forecasts when growing memory will be full, trusting a slope no further than it was observed.

Four conditions separate memory that only grows from memory that is freed again (a cache, cycles until their
collection): it must have grown in all parts of what was seen; by at least twice what is left to fill; by more than was
ever freed at once; and in its later part as much as in its earlier.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from forgather_mem.diagnose.oom.batch_uses import HostMeasure
from forgather_mem.growth.lower_envelope import Line, Point, fit_without_outliers
from forgather_mem.growth.trend import rate_throughout
from forgather_mem.system.allocator import Allocator, gauge_now
from forgather_mem.system.headroom import HostRooms, device_room
from forgather_mem.system.memory_limit import Room
from forgather_mem.units import format_bytes


@dataclass(frozen=True, slots=True)
class FillingLimits:
    """When a rise is trusted. Measured by benchmarks/alerts.py: growth with noise and spikes, and runs that only move.

    Attributes:
        fewest_points: Readings.
        calm_points: The lowest of so many consecutive readings counts, so that spikes don't.
        seen_times: It must have grown by so many times what is left.
        given_back_times: And by so many times what was ever freed at once.
        same_slope_frac: Of the slope: by so much that of the last third may differ.
        most_points: Readings kept; of more, every other of the older ones goes.
        recent_points: Those of the newest that stay.
        forecast_every, room_every: Readings to a forecast, and to asking for the room.
        rooms_kept: To compare the first and the last.
    """

    fewest_points: int = 24
    calm_points: int = 5
    seen_times: float = 2.0
    given_back_times: float = 1.2
    same_slope_frac: float = 0.08
    most_points: int = 320
    recent_points: int = 160
    forecast_every: int = 4
    room_every: int = 16
    rooms_kept: int = 16


_WHEN = FillingLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When memory will be full.

    Attributes:
        at_step: The step at which memory will be full; `low_step` and `high_step` are the bounds.
        steps_left: Steps from now until then.
        bytes_per_step: The growth rate.
    """

    at_step: int
    low_step: int
    high_step: int
    steps_left: float
    bytes_per_step: float


class Filling:
    """Memory sizes over the last steps, and what was freed before.

    Args:
        within_steps: Forecasts further ahead than this are not needed.

    >>> filling = Filling(within_steps=200)
    >>> for step in range(1, 81):
    ...     filling.add(step, 1e9 * step)
    >>> forecast = filling.forecast(capacity_bytes=100e9)
    >>> forecast.at_step, round(forecast.steps_left)
    (100, 20)
    """

    def __init__(self, within_steps: int) -> None:
        self._within_steps = within_steps
        self._span_steps = max(3 * within_steps, 4 * _WHEN.fewest_points)
        self._points: deque[Point] = deque()
        self._last: deque[float] = deque(maxlen=_WHEN.calm_points)
        self._top = self._given_back = 0.0

    def add(self, step: int, size: float) -> None:
        """Add the bytes in use at the end of this step."""
        self._last.append(size)
        points = self._points
        while points and points[0][0] < step - self._span_steps:
            points.popleft()
        calm = min(self._last)
        self._top = max(calm, self._top) if points else calm
        self._given_back = max(self._given_back, self._top - calm)
        points.append((step, size))
        if len(points) > _WHEN.most_points:  # the older, the sparser
            old = len(points) - _WHEN.recent_points
            self._points = deque([*itertools.islice(points, 0, old, 2), *itertools.islice(points, old, None)])

    def forecast(self, capacity_bytes: float) -> Forecast | None:
        """When this capacity will be exhausted; None if that is not in sight. Costs 2 us while it is not."""
        points = self._points
        if len(points) < _WHEN.fewest_points:
            return None
        least = min(size for _, size in itertools.islice(points, 0, None, max(1, len(points) // 64)))
        if min(self._last) - least < 0.9 * _WHEN.seen_times * (capacity_bytes - min(self._last)):
            return None
        seen = list(points)
        length = len(seen)
        while length >= _WHEN.fewest_points:
            found = self._of(seen[-length:], capacity_bytes)
            if found is not None:
                return found
            length = length * 7 // 10
        return None

    def _of(self, part: Sequence[Point], capacity_bytes: float) -> Forecast | None:
        rate = rate_throughout(part)
        if rate is None or rate.per_step * (part[-1][0] - part[0][0]) < _WHEN.given_back_times * self._given_back:
            return None
        line = fit_without_outliers(part)
        if line is None or not _goes_on(line, part):
            return None
        at = self._points[-1][0]
        steps_left = max(0.0, (capacity_bytes - line.at(at)) / line.slope)
        if steps_left > self._within_steps or at - part[0][0] < _WHEN.seen_times * steps_left:
            return None
        off = 2 * line.error_at(at + steps_left) / line.slope
        return Forecast(
            at_step=at + round(steps_left),
            low_step=at + max(0, round(steps_left - off)),
            high_step=at + round(steps_left + off),
            steps_left=steps_left,
            bytes_per_step=line.slope,
        )


def _goes_on(line: Line, part: Sequence[Point]) -> bool:
    """Whether the last third of the points lies on the line too."""
    last = fit_without_outliers(part[-max(_WHEN.fewest_points // 2, len(part) // 3) :])
    if last is None or last.slope <= 0:
        return False
    error = math.hypot(last.slope_error, line.slope_error)
    return abs(last.slope - line.slope) <= max(_WHEN.same_slope_frac * line.slope, 2.5 * error)


# ---- what there is of each memory, read at step ends ----


_UsedAndFree = tuple[float, int]


class Wall:
    """One memory of this process, and when it will be full.

    Args:
        where: "host", "device", or "device1" for another than the current one.
        within_steps: Only a forecast nearer than this is reported.
        allocator: That other device's. Default: the current device's.
    """

    def __init__(self, where: str, within_steps: int, allocator: Allocator | None = None) -> None:
        self.where, self._of_device = where, allocator
        self._filling, self._within = Filling(within_steps), within_steps
        self._measure = HostMeasure() if where == "host" else None
        self._rooms = HostRooms() if where == "host" else None
        self._calls, self._capacity = 0, 0.0
        self._room: Room | None = None
        self._told_step = -math.inf
        self._seen: deque[_UsedAndFree] = deque(maxlen=_WHEN.rooms_kept)

    def look(self, step: int) -> tuple[Forecast, Room] | None:
        """Once per rise, when memory will be full, and its headroom; else None. Costs 15 us, and 60 us at times."""
        self._calls += 1
        if self._room is None or not self._calls % _WHEN.room_every:
            self._ask()
        used = None if self._room is None else self._now()
        if used is None:
            return None
        self._filling.add(step, used)
        if self._calls % _WHEN.forecast_every:
            return None
        found = self._filling.forecast(self._capacity)
        if found is not None:  # with the current headroom: others use it too
            self._ask()
            found = self._filling.forecast(self._capacity)
        if found is None or self._room is None:
            return None
        is_known = step - self._told_step <= self._within  # after that the rise is over: this is the next one
        self._told_step = step
        return None if is_known else (found, self._room)

    def _ask(self) -> None:
        """Update the capacity: what can be kept between two steps."""
        self._room = next(iter(self._rooms.read()), None) if self._rooms is not None else device_room(self._of_device)
        if self._room is not None and (used := self._now()) is not None:
            self._seen.append((used, self._room.free_bytes))
            times = times_shared(self._seen[0], self._seen[-1], self._room.num_ranks)
            self._capacity = used + self._room.lasting_bytes / times

    def _now(self) -> float | None:
        return gauge_now("allocated_bytes", self._of_device) if self._measure is None else self._measure.read()


def times_shared(then: _UsedAndFree, now: _UsedAndFree, num_ranks: int) -> float:
    """How many times as fast as this process grows what is left shrinks, as far as other ranks can be the reason.

    Args:
        then, now: Bytes that this process uses, and those that are left.
        num_ranks: How many ranks share what is left.
    """
    grown, gone = now[0] - then[0], then[1] - now[1]
    return 1.0 if grown <= 0 else min(num_ranks, max(1.0, gone / grown))


def wall_text(room: Room, forecast: Forecast) -> str:
    """One line for a person."""
    whose = f"the {room.limit}" if room.limit.startswith(("container", "host")) else room.limit
    left = math.ceil(forecast.steps_left)
    near = f"near step {forecast.at_step:,}"
    if forecast.low_step < forecast.high_step:
        near += f" ({forecast.low_step:,} to {forecast.high_step:,})"
    grows = f"it grows {format_bytes(forecast.bytes_per_step)} a step, {format_bytes(room.lasting_bytes)} are left"
    grows += f" to its {room.num_ranks} ranks" if room.num_ranks > 1 else ""
    return f"{whose} is full {near}, in {left:,} step{'s' * (left != 1)}: {grows}"
