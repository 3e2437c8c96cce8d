"""What grows: how much it is a step in all, what it is called, and when memory will be full of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from forgather_mem.growth.trend import GROWTH, Trend
from forgather_mem.system.allocator import current_allocator
from forgather_mem.system.headroom import device_room, host_rooms
from forgather_mem.units import MIB


class LeakThresholds:
    """When growth is looked into, printed and called a leak.

    Set on the scripts of `tests/leaks/zoo` and on the series of `tests/diagnose/leaks/live_series.py`; those by others
    (benchmarks/results/leaks.md) were judged with them afterwards.

    Attributes:
        judged_every, judged_frac: While it trains, sizes are judged after so many more readings, or this fraction of
            all readings: a run of any length is judged some dozens of times.
        lasting_steps: Growth that has lasted so long is printed without a holder. It is several times the 500 steps
            that trainers let pass by default between two logs, evaluations or checkpoints.
        explained: Holders that grow by so many times what the process grows by, at least and at most, explain it.
        suspect_frac: Of the growth: a holder that explains less is not reported.
        sure_frac: Of the growth: of holders that explain less the rest is told as such. Set on one training with
            another leak, in its evaluations, that was not found: what was told explained 72 %.
        sure_steps: Before a leak was seen for so long, its verdict is not yet sure.
        enough_steps: After so many steps it is not too early to judge, but growth is too uneven.
        shrunk_frac: Of its length at the look: a holder that is shorter at the end does not only grow.
        widest_gap_frac, widest_gap_s: Of the steps seen, and seconds: readings are left out for no longer than this.
            The seconds are for steps as slow as 0.3 s, of which 19 in 150 were read, too few for a verdict.
        segment_bytes: CUDA's allocator takes 20 MiB at a time: one more segment is no gain of a total.
        fewest_gained: Readings; of fewer nothing is said about what a total has gained.
        kept_bytes: Freed memory that the C library keeps in any training of some minutes.
    """

    judged_every = 4
    judged_frac = 1 / 16
    lasting_steps = 2000
    explained = (0.4, 2.5)
    suspect_frac = 0.05
    sure_frac = 0.75
    sure_steps = 100
    enough_steps = 200
    shrunk_frac = 0.9
    widest_gap_frac = 1 / 64
    widest_gap_s = 0.5
    segment_bytes = 20 * MIB
    fewest_gained = 6
    kept_bytes = 32 * MIB

    def explains(self, held: float, per_step: float) -> bool:
        """Whether holders that grow by `held` bytes a step explain growth by `per_step`."""
        return self.explained[0] * per_step <= held <= self.explained[1] * per_step


LEAK = LeakThresholds()
# Growth per step that is not reported. Arenas and maps grow by a MiB at a time.
FLOORS = {"mapped": 4 * GROWTH.floor_bytes, "shared": 4 * GROWTH.floor_bytes, "workers": 2 * GROWTH.floor_bytes}


def floor_of(name: str) -> float:
    """Growth of this size, in bytes a step, that is not reported."""
    return FLOORS.get(name, GROWTH.floor_bytes)


def whole_of(growing: Mapping[str, Trend]) -> Trend:
    """The growth on the device alone, or else the sum of what grows on the host; Python's small objects count once.

    Objects, of a usual size each, and the arenas in which they lie are two measures of one: the smaller counts, if the
    objects explain the arenas at all. What is more is free between them, or they are smaller than usual.
    """
    for name in ("device", "pinned"):
        if name in growing:
            return growing[name]
    parts = [growing[name] for name in ("native", "shared", "workers") if name in growing]
    small = [growing[name] for name in ("objects", "mapped") if name in growing]
    if small and LEAK.explains(small[0].per_step, small[-1].per_step):
        small.sort(key=lambda part: -part.per_step)
    parts += [replace(part, since_step=min(one.since_step for one in small)) for part in small[-1:]]
    low, high, rate = (sum(getattr(part, name) for part in parts) for name in ("low", "high", "per_step"))
    since, steps = min(part.since_step for part in parts), max(part.steps for part in parts)
    return Trend(kind="leak", per_step=rate, low=low, high=high, since_step=since, steps=steps)


def label_of(growing: Collection[str]) -> str:
    allocator = current_allocator()
    if "device" in growing and allocator is not None:
        return f"GPU {allocator.index}"
    if set(growing) == {"shared"}:
        return "shared memory (/dev/shm)"
    return "the data workers' memory" if set(growing) == {"workers"} else "host memory"


def full_at(step: int, rate: float, on_device: bool) -> int | None:
    """The step at which memory will be full at this rate: on a device, at the peak of a step; on the host, if all ranks
    that share what is left grow alike."""
    if rate <= 0:
        return None
    room = device_room() if on_device else next(iter(host_rooms()), None)
    return None if room is None else step + round(room.lasting_bytes / (rate * room.num_ranks))
