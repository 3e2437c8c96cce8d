"""Is memory near its wall, or on the way there? Values against limits, and the time until nothing is left."""

from __future__ import annotations

import itertools
import logging
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forgather_mem.diagnose.walls import Wall, wall_text
from forgather_mem.fence import Fence
from forgather_mem.metrics import metric_of
from forgather_mem.sample import Finding, Moment, RunInfo, Sample
from forgather_mem.store import Agreement, default_store
from forgather_mem.units import format_bytes, format_share

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, float] = {}
# A value must go back by so much of its limit before it can rise above it again.
REARM_FRAC = 0.05
# Ranks look into the store at each step; so many steps later all of them have.
_AHEAD_STEPS = 4
_run_numbers = itertools.count()  # the same on every rank, since all ranks run the same trainings


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What is told; plain data.

    Attributes:
        step: The step that has just ended.
        rank: Of which process this is.
        name: A sample name, or "host" or "device" for a memory that will be full.
        value: The sample's value; for a memory the bytes it grows by at each step.
        limit: What it has crossed; None for a memory that will be full.
        text: One line for a person.
        full_at_step: When nothing is left, if it goes on like that; None for a limit.
        full_at_low, full_at_high: Between which steps that lies most likely.
    """

    step: int
    rank: int
    name: str
    value: float
    limit: float | None
    text: str
    full_at_step: int | None = None
    full_at_low: int | None = None
    full_at_high: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A limit on a sample."""

    name: str
    limit: float
    above: bool

    def is_crossed(self, value: float) -> bool:
        return value > self.limit if self.above else value < self.limit

    def is_left(self, value: float) -> bool:
        """Far enough on the good side to be crossed anew."""
        if self.above:
            return value <= (1 - REARM_FRAC) * self.limit
        return value >= (1 + REARM_FRAC) * self.limit


class AlertWatch:
    """The work of `MemoryAlert`: state of one training, made in `begin` and dropped in `end`.

    Args:
        lines: The limits.
        full_within_steps: Tell of a wall nearer than this; None for never.
        call: The user's function, or None.
        save, stop: What to ask the trainer for.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        full_within_steps: int | None,
        call: Callable[[Alert], object] | None,
        save: bool,
        stop: bool,
    ) -> None:
        self._lines = tuple(lines)
        self._within = full_within_steps
        self._call = call
        self._save, self._stop = save, stop
        self._walls: list[Wall] = []
        self._calls = 0

    def begin(self, run: RunInfo) -> None:
        self.end(run)
        self._up: set[Line] = set()
        self._read: set[str] = set()
        self._calls = 0
        self._rank, self._world_size = run.rank, run.world_size
        self._key = f"alert/{next(_run_numbers)}"
        self._agreement = Agreement(self._key, "0", rank=run.rank, world_size=run.world_size)
        self._asked, self._done = 0, "0"
        if self._within is not None:
            self._walls = [Wall("device", self._within), Wall("host", self._within)]

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        alerts = [alert for line in self._lines if (alert := self._look(line, moment, sample)) is not None]
        if moment.event == "step_end":
            self._calls += 1
            alerts += [alert for wall in self._walls if (alert := _wall_alert(moment, wall)) is not None]
        for alert in alerts:
            self._tell(moment.run, alert)
        if self._save or self._stop:
            self._ask(moment, bool(alerts))
        fence = getattr(moment.run, "fence", None) or Fence()
        for alert in alerts:  # last, and each by itself: a tracker that can't be reached keeps nobody from acting
            fence.call("MemoryAlert to a tracker", _pass_on, "forgather-mem: memory", alert.text)
            fence.call("MemoryAlert's call", self._call, alert)
        return NOTHING

    def end(self, run: RunInfo) -> None:
        for wall in self._walls:
            wall.close()
        for line in self._lines if self._calls else ():
            if line.name not in self._read and not line.name.startswith("device/"):
                logger.warning("MemoryAlert: nobody has read %r in this training: no alert could come of it", line.name)
        self._walls, self._calls = [], 0

    # ---- inside ----

    def _look(self, line: Line, moment: Moment, sample: Sample) -> Alert | None:
        value = sample.values.get(line.name)
        if value is None:
            return None
        self._read.add(line.name)
        if line in self._up:
            if line.is_left(value):
                self._up.discard(line)
            return None
        if not line.is_crossed(value):
            return None
        self._up.add(line)
        shown, limit = _shown(line.name, value), _shown(line.name, line.limit)
        side = "above" if line.above else "below"
        return Alert(
            step=moment.step,
            rank=moment.run.rank,
            name=line.name,
            value=value,
            limit=line.limit,
            text=f"{line.name} is {shown}, {side} {limit}",
        )

    def _tell(self, run: RunInfo, alert: Alert) -> None:
        data = {name: getattr(alert, name) for name in Alert.__dataclass_fields__ if name != "text"}
        run.tell(Finding(kind="alert", step=alert.step, text=alert.text, data=data))
        indent = " " * len("forgather-mem: ")
        head = f"forgather-mem: step {alert.step:,}: "
        if alert.rank:
            logger.warning("rank %d, step %d: %s", alert.rank, alert.step, alert.text)  # rank 0 alone has a console
        else:
            run.say(textwrap.fill(head + alert.text, 80, subsequent_indent=indent, break_on_hyphens=False))

    def _ask(self, moment: Moment, wanted: bool) -> None:
        """All ranks save and stop at the same step: rank 0 says from which one on."""
        step = moment.step
        if moment.event != "step_end":
            self._asked += wanted  # at the next step's end
            return
        if wanted or self._asked:
            self._asked = 0
            self._want(step)
        elif self._rank == 0 and self._world_size > 1 and self._others_want():
            self._want(step)
        held = self._agreement.at(step)
        if held != self._done:
            self._done = held
            if self._save:
                moment.control.should_save = True
            if self._stop:
                moment.control.should_training_stop = True

    def _want(self, step: int) -> None:
        if self._rank == 0:
            ahead = 0 if self._world_size == 1 else _AHEAD_STEPS
            self._agreement.propose(str(int(self._done) + 1), from_step=step + ahead)
        else:
            store = default_store()
            if store is not None:
                store.set(self._wish(), "1")

    def _others_want(self) -> bool:
        store = default_store()
        return store is not None and bool(store.check([self._wish()]))

    def _wish(self) -> str:
        return f"forgather_mem/{self._key}/wish/{self._done}"

    def __getstate__(self) -> dict[str, object]:
        kept = ("_lines", "_within", "_call", "_save", "_stop")
        return {name: value for name, value in self.__dict__.items() if name in kept} | {"_walls": [], "_calls": 0}


def _wall_alert(moment: Moment, wall: Wall) -> Alert | None:
    found = wall.look(moment.step)
    if found is None:
        return None
    forecast, room = found
    return Alert(
        step=moment.step,
        rank=moment.run.rank,
        name=wall.where,
        value=forecast.bytes_per_step,
        limit=None,
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
    return f"{value * metric.factor:,.4g} {metric.unit}".strip()


def _pass_on(title: str, text: str) -> None:
    """To the experiment trackers that this process uses; none is imported here."""
    wandb = sys.modules.get("wandb")
    active: Any = getattr(wandb, "run", None)
    if active is not None and hasattr(active, "alert"):
        active.alert(title=title, text=text)
    trackio: Any = sys.modules.get("trackio")
    current = getattr(getattr(trackio, "context_vars", None), "current_run", None)
    if current is not None and current.get() is not None and hasattr(trackio, "alert"):
        trackio.alert(title=title, text=text)
