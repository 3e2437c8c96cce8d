"""Does this training leak? Sizes are read, trends judged, and when one grows a closer look names the holder."""

from __future__ import annotations

import textwrap
import time
import weakref
from collections.abc import Mapping
from typing import Any

from forgather_mem.diagnose.closer_look import LOOK_STEPS, CloserLook
from forgather_mem.diagnose.growth import length_of
from forgather_mem.diagnose.leak_sizes import LeakSizes
from forgather_mem.diagnose.suspects import Suspect
from forgather_mem.diagnose.trend import FLOOR_BYTES, Series, Trend
from forgather_mem.diagnose.walk import Walk
from forgather_mem.diagnose.worker_code import worker_suspects
from forgather_mem.probes.allocator import current_allocator, driver_memory
from forgather_mem.probes.limits import MemoryLimit
from forgather_mem.sample import Finding, Moment, RunInfo, Sample
from forgather_mem.units import format_bytes, format_duration

NOTHING: Mapping[str, float] = {}
# What may come a step without a word. Arenas and maps come in pieces of a MiB.
_FLOORS = {"mapped": 4 * FLOOR_BYTES, "workers": 2 * FLOOR_BYTES}
_RARE = ("objects", "workers")
_JUDGED_EVERY = 4  # readings
_SURE_STEPS = 100


class LeakWatch:
    """The work of `LeakDetector`: state of one training, made in `begin` and dropped in `end`."""

    def __init__(self, look_closer: bool = True) -> None:
        self._look_closer = look_closer
        self._sizes: LeakSizes | None = None

    def begin(self, run: RunInfo) -> None:
        self._sizes = LeakSizes()
        self._series: dict[str, Series] = {}
        self._calls = 0
        self._alarms = 0
        self._first_step = run.step
        self._began_s = time.perf_counter()
        self._look: CloserLook | None = None
        self._at_look: dict[str, float] = {}
        self._suspects: list[Suspect] = []
        self._window_step: int | None = None
        self._looks = 0
        self._loader: weakref.ref[Any] | None = None

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if self._sizes is None:
            return NOTHING
        if self._loader is None and (loader := moment.objects.get("train_dataloader")) is not None:
            self._loader = weakref.ref(loader)
        values = self._sizes.read()
        if self._sizes.workers_changed:
            self._series.pop("workers", None)  # other processes: what they hold does not go on
        for name, value in values.items():
            series = self._series.get(name)
            if series is None:
                series = self._series[name] = Series()
            series.add(moment.step, value)
        self._calls += 1
        if self._look is not None:
            self._look_again(moment, values)
        elif not self._calls % _JUDGED_EVERY and self._looks < 2 and not self._suspects:
            self._judge(moment)
        return NOTHING

    def end(self, run: RunInfo) -> None:
        sizes, self._sizes = self._sizes, None
        if sizes is None:
            return
        sizes.close()
        if self._look is not None:
            self._end_look(run)
        _count_again(self._suspects)
        leak = self._verdict(run)
        run.tell(Finding(kind="leak", step=run.step, text=_sentence(leak), data=leak))
        self._suspects = []

    # ---- while it goes on ----

    def _judge(self, moment: Moment) -> None:
        growing = {
            name: trend
            for name, series in self._series.items()
            if series.may_grow(_floor(name)) and (trend := series.judge(_floor(name))).kind == "leak"
        }
        self._alarms = self._alarms + 1 if growing else 0
        if self._alarms < 2:  # once may be chance
            return
        self._alarms = 0
        trend = _whole(growing)
        if not self._looks:
            self._say_suspicion(moment, growing, trend)
        self._looks += 1
        if self._look_closer and set(growing) != {"workers"}:
            self._look, self._finished = CloserLook(moment.step), False
            self._at_look = {name: series.points[-1][1] for name, series in self._series.items()}
            self._rate = trend.per_step

    def _look_again(self, moment: Moment, values: Mapping[str, float]) -> None:
        assert self._look is not None
        if self._window_step is not None:
            if moment.step - self._window_step >= LOOK_STEPS:
                self._end_look(moment.run)
            return
        grown = sum(max(0.0, value - self._at_look.get(name, value)) for name, value in values.items())
        if moment.step - self._look.step < LOOK_STEPS or grown < 0.6 * self._rate * LOOK_STEPS:
            return
        self._suspects = self._look.finish(moment.step, self._rate) or self._suspects
        self._finished = True
        if self._look.open_window():
            self._window_step = moment.step
        else:
            self._end_look(moment.run)

    def _end_look(self, run: RunInfo) -> None:
        look, self._look = self._look, None
        assert look is not None
        if self._window_step is not None:
            look.close_window()
        elif not self._finished and run.step > look.step:  # the training ends before all was seen
            self._suspects = look.finish(run.step, self._rate) or self._suspects
        look.drop()
        if self._window_step is None and not self._suspects:
            return
        self._window_step = None
        top = self._suspects[0]
        made = f", made at {top.allocated_at}" if top.allocated_at else ""
        many = f", {top.count_per_step:+,.3g} a step" if top.count_per_step else ""
        leak = self._verdict(run)
        run.tell(Finding(kind="leak", step=run.step, text=_sentence(leak), data=leak))
        _say(run, f"held by {top.held_by}{many}{made}" + (f"; {top.bounded}: no leak then" if top.bounded else ""))

    def _say_suspicion(self, moment: Moment, growing: Mapping[str, Trend], trend: Trend) -> None:
        full = _full_at(moment.step, trend.per_step, "device" in growing)
        text = f"{_label(growing)} grows {format_bytes(trend.per_step)} a step"
        if full is not None and full < 1e9:
            step_s = (time.perf_counter() - self._began_s) / max(1, moment.step - self._first_step)
            text += f", full near step {full:,} (in {format_duration((full - moment.step) * step_s)})"
        if self._look_closer:
            text += f". Looking closer for {LOOK_STEPS} steps"
        _say(moment.run, text + ".")

    # ---- in the end ----

    def _verdict(self, run: RunInfo) -> dict[str, Any]:
        trends = {name: series.judge(_floor(name)) for name, series in self._series.items()}
        growing = {name: trend for name, trend in trends.items() if trend.kind == "leak"}
        if not growing:
            return _no_leak(trends)
        trend = _whole(growing)
        loader = self._loader() if self._loader is not None else None
        if "workers" in growing and loader is not None:
            self._suspects += worker_suspects(loader, growing["workers"].per_step)
        suspects = [one for one in self._suspects if one.bytes_per_step >= 0.05 * trend.per_step]
        bounded = next((one.bounded for one in suspects[:1] if one.bounded), None)
        if bounded:
            unknown = _no_leak({**trends, **dict.fromkeys(growing, Trend(kind="not enough data"))})
            return {**unknown, "why": f"it grows, but {bounded}", "suspects": [one.as_dict() for one in suspects]}
        explained = sum(one.bytes_per_step for one in suspects)
        seen = run.step - trend.since_step
        sure = "not yet"
        if seen >= _SURE_STEPS:
            sure = "yes" if 0.4 * trend.per_step <= explained <= 2.5 * trend.per_step else "likely"
        return {
            "verdict": "leak",
            "where": _where(growing, suspects),
            "bytes_per_step": trend.per_step,
            "bytes_per_step_low": trend.low,
            "bytes_per_step_high": trend.high,
            "since_step": trend.since_step,
            "full_at_step": _full_at(run.step, trend.per_step, "device" in growing),
            "suspects": [one.as_dict() for one in suspects],
            "sure": sure,
        }

    def __getstate__(self) -> dict[str, object]:
        return {"_look_closer": self._look_closer, "_sizes": None}


def _sentence(leak: Mapping[str, Any]) -> str:
    """The verdict for a text page."""
    if leak["verdict"] != "leak":
        return f"{leak['verdict']}: under {format_bytes(leak['bytes_per_step_high'])} a step"
    holders = [f"held by {one['held_by']}, made at {one['allocated_at']}" for one in leak["suspects"][:3]]
    return "\n".join([f"leak: {format_bytes(leak['bytes_per_step'])} a step", *holders])


def _say(run: RunInfo, text: str) -> None:
    """A live line of 80 columns, also where nobody has asked for a console."""
    indent = " " * len("forgather-mem: ")
    run.say(textwrap.fill(f"forgather-mem: step {run.step:,}: {text}", 80, subsequent_indent=indent))


def _count_again(suspects: list[Suspect]) -> None:
    """How much the holders hold now."""
    counted = {one.held_by: one for one in suspects if one.count is not None and one.bytes is not None}
    if not counted:
        return
    least = min(one.count or 0 for one in counted.values())
    walk = Walk()
    for position, node in enumerate(walk.nodes):
        length = length_of(node)
        if length is not None and length >= least:
            one = counted.get(walk.holder(position))
            if one is not None and one.count and one.bytes:
                one.bytes = round(one.bytes / one.count * length)
                one.count = length
    walk.forget()


def _floor(name: str) -> float:
    return _FLOORS.get(name, FLOOR_BYTES)


def _whole(growing: Mapping[str, Trend]) -> Trend:
    """The device's growth alone, else that of all that grows on the host; Python's arenas count once."""
    for name in ("device", "pinned"):
        if name in growing:
            return growing[name]
    parts = [growing[name] for name in ("native", "workers") if name in growing]
    small = [growing[name] for name in ("mapped", "objects") if name in growing]
    parts += small[:1]
    return Trend(
        kind="leak",
        per_step=sum(part.per_step for part in parts),
        low=sum(part.low for part in parts),
        high=sum(part.high for part in parts),
        since_step=min(part.since_step for part in parts),
        steps=max(part.steps for part in parts),
    )


def _where(growing: Mapping[str, Trend], suspects: list[Suspect]) -> str:
    if "device" in growing:
        return "device"
    if set(growing) == {"workers"}:
        return "workers"
    if suspects:
        return suspects[0].where
    return "python" if "objects" in growing and "native" not in growing else "native"


def _label(growing: Mapping[str, Trend]) -> str:
    allocator = current_allocator()
    if "device" in growing and allocator is not None:
        return f"GPU {allocator.index}"
    return "the data workers' memory" if set(growing) == {"workers"} else "host memory"


def _no_leak(trends: Mapping[str, Trend]) -> dict[str, Any]:
    known = [trend for trend in trends.values() if trend.kind == "no leak"]
    # A size that is read rarely, of objects or of workers, may have too few readings: the others tell enough
    open_ = any(trend.kind != "no leak" for name, trend in trends.items() if name not in _RARE or trend.high)
    high = max((trend.high for name, trend in trends.items() if name not in _FLOORS), default=0.0)
    return {
        "verdict": "not enough data" if open_ or not known else "no leak",
        "where": None,
        "bytes_per_step": 0.0,
        "bytes_per_step_low": 0.0,
        "bytes_per_step_high": high,
        "since_step": 0,
        "full_at_step": None,
        "suspects": [],
        "sure": "not yet" if open_ or not known else "yes",
    }


def _full_at(step: int, rate: float, on_device: bool) -> int | None:
    """The step at which no more is left, at this rate."""
    if rate <= 0:
        return None
    allocator = current_allocator()
    if on_device:
        memory = None if allocator is None else driver_memory(allocator)
        left = None if memory is None else memory[0]
    else:
        limit = MemoryLimit("/proc", "/sys/fs/cgroup")
        try:
            left = limit.limit_bytes - limit.used_bytes()
        finally:
            limit.close()
    return None if left is None else step + max(0, round(left / rate))
