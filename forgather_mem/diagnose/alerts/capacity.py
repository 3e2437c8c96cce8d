"""The capacity of host and device memory, read at step ends, with a forecast of when it is reached."""

from __future__ import annotations

import math
from collections import deque

from forgather_mem.diagnose.alerts.forecast import Filling, Forecast
from forgather_mem.diagnose.oom.batch_uses import HostMeasure
from forgather_mem.errors import ours
from forgather_mem.system.allocator import Allocator, current_allocator, gauge
from forgather_mem.system.headroom import HostRooms, Room, room_of
from forgather_mem.units import format_bytes


class _Every:
    """Readings to a forecast, and to asking for the room; rooms that are kept, to compare the first and the last."""

    forecast = 4
    room = 16
    rooms_kept = 16


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
        self._measure: HostMeasure | None = None
        self._rooms: HostRooms | None = None
        self._calls, self._capacity = 0, 0.0
        self._room: Room | None = None
        self._told_step: int | None = None
        self._seen: deque[_UsedAndFree] = deque(maxlen=_Every.rooms_kept)
        if where == "host":
            try:
                self._measure, self._rooms = HostMeasure(), HostRooms()
            except ours(OSError):  # no /proc
                self.where = ""

    def look(self, step: int) -> tuple[Forecast, Room] | None:
        """Once per rise, when memory will be full, and its headroom; else None. Costs 15 us, and 60 us at times."""
        self._calls += 1
        used = self._read()
        if used is None:
            return None
        self._filling.add(step, used)
        if self._calls % _Every.forecast:
            return None
        found = self._filling.forecast(self._capacity)
        if found is not None:  # with the current headroom: others use it too
            self._ask()
            found = self._filling.forecast(self._capacity)
        if found is None:
            if self._told_step is not None and step - self._told_step > self._within:
                self._told_step = None  # the rise is over: the next one is reported again
            return None
        known, self._told_step = self._told_step is not None, step
        return None if known or self._room is None else (found, self._room)

    def _read(self) -> float | None:
        """Bytes in use now; the capacity is read less often."""
        if self.where and (self._room is None or not self._calls % _Every.room):
            self._ask()
        return None if self._room is None else self._now()

    def _ask(self) -> None:
        """Update the capacity: what can be kept between two steps."""
        if self._rooms is not None:
            self._room = next(iter(self._rooms.read()), None)
        else:
            allocator = self._of_device or current_allocator()
            self._room = None if allocator is None else room_of(allocator, allocator.stats())
        used = None if self._room is None else self._now()
        if self._room is not None and used is not None:
            self._seen.append((used, self._room.free_bytes))
            times = times_shared(self._seen[0], self._seen[-1], self._room.num_ranks)
            self._capacity = used + self._room.lasting_bytes / times

    def _now(self) -> float | None:
        if self._measure is not None:
            return float(self._measure.read())
        allocator = self._of_device or current_allocator()
        return None if allocator is None else gauge(allocator.stats(), "allocated_bytes")


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
