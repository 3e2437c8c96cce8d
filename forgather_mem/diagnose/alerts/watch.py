"""Alerts: compares values with limits, and forecasts when host or device memory will be full."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from forgather_mem.diagnose.alerts.alert import Alert, emit_alert, told_by
from forgather_mem.diagnose.alerts.forecast import Wall, wall_text
from forgather_mem.system.allocator import used_allocators
from forgather_mem.system.rank_store import RankAgreement, get, put
from forgather_mem.system.time_budget import TimeBudget
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.metrics import metric_of, name_on_current
from forgather_mem.telemetry.records import FORETOLD, NOTHING, Finding, Moment, RunInfo, Sample
from forgather_mem.telemetry.triggers import Crossing, Limit
from forgather_mem.units import format_bytes, format_share

logger = logging.getLogger(__name__)

# Ranks look into the store at each step; after this many steps all of them have done so.
_AHEAD_STEPS = 4
_FIND_DEVICES_EVERY_S = 1.0
# What is usually watched, for people; a training may lack it
USUAL = {
    "host/limit_used_frac": "the used share of host memory's tightest limit",
    "device/headroom_bytes": "what can still be allocated there",
}


@dataclass(eq=False)
class AlertWatch:
    """The work of `MemoryAlert`, in one training.

    Attributes:
        run: The training.
        limits: The limits on samples.
        full_within_steps: Report memory that will be full within this many steps; None for never.
        call: The user's function, or None.
        save, stop: Whether to ask the trainer to save or to stop.
    """

    run: RunInfo
    limits: Sequence[Limit]
    full_within_steps: int | None
    call: Callable[[Alert], object] | None
    save: bool
    stop: bool

    def __post_init__(self) -> None:
        run, within = self.run, self.full_within_steps
        self._devices: set[int] = set()  # those besides the current one
        self._find, self._calls = TimeBudget(_FIND_DEVICES_EVERY_S), 0
        self._crossings = [Crossing(limit) for limit in self.limits]
        self._read: set[str] = set()
        self._key = run.store_key("alert")
        self._agreement = RankAgreement(self._key, "0", rank=run.rank, world_size=run.world_size)
        self._asked, self._done = False, "0"
        self._walls = [] if within is None else [Wall(one, within) for one in ("device", "host")]

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        self._find.take(self._find_devices)
        found = [alert for one in self._crossings if (alert := self._look(one, moment, sample)) is not None]
        if moment.event == "step_end":
            self._calls += 1
            found += [alert for wall in self._walls if (alert := _wall_alert(moment.step, wall)) is not None]
        alerts = [replace(alert, step=moment.step, rank=self.run.rank) for alert in found]
        for alert in alerts:
            emit_alert(moment.run, alert)
        if self.save or self.stop:
            self._ask(moment, bool(alerts))
        for alert in alerts:  # last: an unreachable tracker must not prevent the rest
            _pass_on(moment.run, alert, self.call)
        return NOTHING

    def end(self, run: RunInfo) -> None:
        for limit in self.limits if self._calls else ():
            if limit.name not in self._read | USUAL.keys() and not limit.name.startswith("device/"):
                logger.warning("MemoryAlert: %r was never measured in this training: no alert was possible", limit.name)

    def _find_devices(self) -> dict[str, float]:
        """Watch each device of this process by itself: the first to be full ends the training."""
        for allocator in used_allocators()[1:]:
            if allocator.index in self._devices:
                continue
            self._devices.add(allocator.index)
            family = f"device{allocator.index}"
            for limit in self.limits:
                if limit.name.startswith("device/"):
                    self._crossings.append(Crossing(replace(limit, name=family + limit.name.removeprefix("device"))))
            if self.full_within_steps is not None:
                self._walls.append(Wall(family, self.full_within_steps, allocator))
        return {}

    def _look(self, crossing: Crossing, moment: Moment, sample: Sample) -> Alert | None:
        limit = crossing.limit
        # Others may have read it since, in a step that was not looked at here
        value = sample.values.get(limit.name, moment.run.latest(limit.name))
        if value is None:
            return None
        self._read.add(limit.name)
        if not crossing.crosses(value):
            return None
        side = "below" if limit.is_lower else "above"
        words = USUAL.get(name_on_current(limit.name))
        return Alert(
            name=limit.name,
            value=value,
            limit=limit.value,
            text=f"{limit.name} is {_shown(limit.name, value)}, {side} {_shown(limit.name, limit.value)}"
            + (f" ({words})" if words else ""),
        )

    def _ask(self, moment: Moment, wanted: bool) -> None:
        """Make all ranks save and stop at the same step: rank 0 decides which."""
        self._asked |= wanted
        if moment.event != "step_end":  # it is decided at the next one
            return
        if self._asked or (self.run.rank == 0 and self.run.world_size > 1 and get(self._wish()) is not None):
            self._asked = False
            if self.run.rank:
                put(self._wish(), "1")
            else:
                ahead = 0 if self.run.world_size == 1 else _AHEAD_STEPS
                self._agreement.propose(str(int(self._done) + 1), from_step=moment.step + ahead)
        held = self._agreement.at(moment.step)
        if held != self._done:
            self._done = held
            if self.save:
                moment.control.should_save = True
            if self.stop:
                moment.control.should_training_stop = True

    def _wish(self) -> str:
        return f"{self._key}/wish/{self._done}"


class ForetoldRelay:
    """A sink that passes what was foretold on to the trackers of this process, and to the user's function."""

    def __init__(self, call: Callable[[Alert], object] | None) -> None:
        self._call = call
        self._run: RunInfo | None = None

    def begin(self, run: RunInfo) -> None:
        self._run = run

    def write(self, sample: Sample) -> None:
        """Records are not passed on."""

    def tell(self, finding: Finding) -> None:
        """Pass it on, if it is one."""
        if finding.kind == "alert" and finding.data.get("what") == FORETOLD:
            _pass_on(self._run, told_by(finding), self._call)

    def __getstate__(self) -> dict[str, object]:
        return {"_call": self._call, "_run": None}


def _wall_alert(step: int, wall: Wall) -> Alert | None:
    found = wall.look(step)
    if found is None:
        return None
    forecast, room = found
    return Alert(
        name=wall.where,
        value=forecast.bytes_per_step,
        full_at_step=forecast.at_step,
        full_at_low=forecast.low_step,
        full_at_high=forecast.high_step,
        text=wall_text(room, forecast),
    )


def _shown(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_frac"):
        return format_share(value)
    metric = metric_of(name)
    number = value * metric.factor
    return f"{number:{',.0f' if number >= 1000 else '.4g'}} {metric.unit}".removesuffix(" count")


def _pass_on(run: RunInfo | None, alert: Alert, call: Callable[[Alert], object] | None) -> None:
    """To a tracker and to the user's function, each on its own."""
    fence = FailureGuard() if run is None else run.fence
    fence.call("MemoryAlert to a tracker", _to_trackers, "forgather-mem: memory", alert.text)
    fence.call("MemoryAlert's call", call, alert)


def _to_trackers(title: str, text: str) -> None:
    """Pass it on to the experiment trackers that this process uses; none is imported here."""
    wandb = sys.modules.get("wandb")
    active: object = getattr(wandb, "run", None)
    if active is not None and hasattr(active, "alert"):
        active.alert(title=title, text=text)
    trackio: object = sys.modules.get("trackio")
    current = getattr(getattr(trackio, "context_vars", None), "current_run", None)
    if current is not None and current.get() is not None and hasattr(trackio, "alert"):
        trackio.alert(title=title, text=text)
