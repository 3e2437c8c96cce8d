"""Watches a training for leaks: reads sizes, judges their trends, and looks for the holder when one grows."""

from __future__ import annotations

import textwrap
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forgather_mem.diagnose.leaks.alarms import LiveAlarm, is_soon, lasting, taken_back
from forgather_mem.diagnose.leaks.growing import LEAK, floor_of, full_at, label_of, whole_of
from forgather_mem.diagnose.leaks.sizes import LeakSizes, counted_bytes
from forgather_mem.growth.trend import GROWTH, Series, Trend, fewest_steps, judge
from forgather_mem.telemetry.records import NOTHING, Finding, Moment, RunInfo, Sample
from forgather_mem.units import format_bytes, format_pace

if TYPE_CHECKING:
    # What looks for a holder is loaded when something grows: most trainings never need it, and it takes a MiB.
    from forgather_mem.diagnose.leaks.heap_diff import CloserLook
    from forgather_mem.diagnose.leaks.suspects import Place, Suspect
    from forgather_mem.telemetry.report import LeakReport, Unit

# The phases that don't come in each step
_UNITS: dict[str, Unit] = {"evaluate": "an evaluation", "save": "a save", "generate": "a generation"}


class LeakWatch:
    """The work of `LeakDetector`, in one training."""

    reading = ("leaks",)  # of two in a training the first tells

    def __init__(self, run: RunInfo, look_closer: bool = True) -> None:
        self._look_closer = look_closer
        self._look: CloserLook | None = None
        run.at_close(self._close)
        self._failures = list[str]()
        run.watch_failure(lambda error: self._failures.append(type(error).__name__))
        self._sizes, self._rare = LeakSizes(), RarePhases(run)
        run.watch_phases(self._rare)
        self._series: dict[str, Series] = {}
        self._totals: dict[str, Series] = {}
        self._live = LiveAlarm()
        self._growing: dict[str, Trend] = {}
        self._past_workers: Trend | None = None
        self._first_step = run.step
        self._at_look: dict[str, float] = {}
        self._suspects: list[Suspect] = []
        self._looks = 0
        self._searched = False
        self._loader: Callable[[], object] = lambda: None
        self._run = run
        self._read_at, self._read_s = run.step, time.perf_counter()

    def is_urgent(self) -> bool:
        """Whether this reading is not to be left out: it is time for one, or something may grow."""
        if self._look is not None or self._live.suspects:
            return True
        step = self._run.step
        late = time.perf_counter() - self._read_s >= LEAK.widest_gap_s
        return late or step - self._read_at >= LEAK.widest_gap_frac * (step - self._first_step)

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if self._loader() is None and (loader := moment.objects.get("train_dataloader")) is not None:
            self._loader = weakref.ref(loader)
        self._read_at, self._read_s = moment.step, time.perf_counter()
        values = self._sizes.read(moment.step)
        self._keep(moment.step, values)
        self._rare.read(moment.step, values)
        if self._look is not None:
            self._look_again(moment.run, values)
        else:
            self._judge(moment)
        if moment.step == getattr(moment.state, "max_steps", None):  # the last
            self._sizes.copied.read_last(moment.step)
            self._count_again(moment.step)  # before what ends with the training empties its own
        return NOTHING

    def end(self, run: RunInfo) -> None:
        if self._look is not None:
            self._end_look(run)
        self._count_again(run.step, over=True)
        leak = self._verdict(run)
        copied = self._sizes.copied.found()
        if copied is not None:
            from forgather_mem.diagnose.leaks.verdict import with_copied
            from forgather_mem.diagnose.leaks.worker_code import copied_suspect, loader_of

            leak = with_copied(leak, copied_suspect(loader_of(self._loader()), copied), copied.since_step)
        alarm = None if self._failures else self._live.alarm  # after an error it stands: more was perhaps to come
        if alarm is not None and (said := taken_back(alarm, leak, self._trends(), self._series)):
            self._live.taken_back.append(said)
            _print(run, f"taken back: {said}.")
        leak = replace(leak, taken_back=tuple(self._live.taken_back))
        if leak.verdict == "not enough data":
            readings = max((series.points for series in self._series.values()), key=len, default=[])
            leak = replace(leak, judged_steps=fewest_steps(readings))
        _emit(run, leak)

    def _count_again(self, step: int, over: bool = False) -> None:
        if self._suspects:
            from forgather_mem.diagnose.leaks.suspects import count_again

            before = counted_bytes()
            count_again(self._suspects, step, self._first_step + self._rare.rest(step), over)
            self._sizes.leave_out(before)

    def _close(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            look.drop()
        self._sizes.close()

    def _keep(self, step: int, values: Mapping[str, float]) -> None:
        """Add what was read to the series."""
        if self._sizes.workers_changed:  # they are other processes, so their series ends here
            ended = judge(self._series.pop("workers", Series()).points, floor_of("workers"))
            if ended.kind == "leak":
                self._past_workers = ended
        if self._sizes.others_changed:
            self._totals.pop("children", None)
        for kept, read in ((self._series, values), (self._totals, self._sizes.totals)):
            for name, value in read.items():
                kept.setdefault(name, Series()).add(step, value)

    def _judge(self, moment: Moment) -> None:
        back = self._live.ended(self._series)
        if back is not None:
            _print(moment.run, f"taken back: {back}.")
            moment.run.emit(Finding(kind="grows", step=moment.step, text="", data={"what": ""}))
            self._suspects, self._looks = [], 1  # they were of what has ended
        growing = self._live.growing(self._series) or self._rising_early(moment)
        if not growing:
            return
        self._growing = growing
        if self._live.alarm is None:
            self._warn(moment.run, moment.step)
        known = sum(one.bytes_per_step for one in lasting(self._suspects) if one.held_by and one.kind != "workers")
        held = known >= LEAK.explained[0] * whole_of(growing).per_step
        named = held and self._suspects[0].allocated_at is not None
        if self._look_closer and not named and self._looks < 2 and set(growing) != {"workers"}:  # which are others
            self._looks += 1
            self._look_closely(moment.step, self._suspects[0].place if held else None)
            self._at_look, self._rate = {}, whole_of(growing).per_step

    def _rising_early(self, moment: Moment) -> dict[str, Trend]:
        """What has risen by the middle of a training that ends before growth is sure: later nobody can look."""
        last = getattr(moment.state, "max_steps", 0) - self._first_step
        if self._looks or not 0 < last <= LEAK.sure_steps or 2 * (moment.step - self._first_step) < last:
            return {}
        trends = {name: judge(one.points, floor_of(name)) for name, one in self._series.items()}
        return {name: trend for name, trend in trends.items() if trend.per_step > floor_of(name)}

    def _warn(self, run: RunInfo, step: int) -> None:
        """Print what grows, if it is due, with who holds it as far as that is known."""
        growing = self._growing
        known = self._verdict(run) if self._suspects or "workers" in growing else None
        rate = known.bytes_per_step if known and known.verdict == "leak" else whole_of(growing).per_step
        full = self._full_at(step, rate, growing)
        if not self._live.is_due(growing, step, full, known):
            return
        from forgather_mem.telemetry.report import NOT_JUDGED

        unit = self._rare.told(known or NOT_JUDGED)
        label = (known.grows if known and known.verdict == "leak" else "") or f"{label_of(growing)} grows"
        text = f"{label} {format_bytes(rate * unit.per_steps)} {unit.per} so far"
        if full is not None and is_soon(growing, step, full):
            text += f", full near step {full:,} at its last pace"
        _print(run, text + (f": {_held(self._suspects[0], unit)}." if self._suspects else "."))
        self._live.printed(growing, self._series, step, f"{label} {format_bytes(rate)} a step")
        told = f"{rate:.0f}" if growing.keys().isdisjoint(("device", "workers")) else ""  # for a run that is killed
        run.emit(Finding(kind="grows", step=step, text="", data={"what": told}))

    def _look_closely(self, step: int, held: Place | None) -> None:
        """Take the first look, for a line if the holder is known; what it keeps, its code too, is left out."""
        before = counted_bytes()
        from forgather_mem.diagnose.leaks.heap_diff import CloserLook

        self._look = CloserLook(step, far=self._looks > 1, held=held)
        self._sizes.leave_out(before)

    def _look_again(self, run: RunInfo, values: Mapping[str, float]) -> None:
        assert self._look is not None
        # From the first reading after the look on: one before it may be older than what the look has seen
        grown = sum(max(0.0, value - self._at_look.setdefault(name, value)) for name, value in values.items())
        if run.step - self._look.step >= self._look.STEPS and grown >= 0.6 * self._rate * self._look.STEPS:
            self._end_look(run)

    def _end_look(self, run: RunInfo) -> None:
        """Look again, and tell what was found."""
        look, self._look = self._look, None
        assert look is not None
        before = counted_bytes()
        try:
            if run.step > look.step:
                first_step = self._first_step + self._rare.rest(run.step)
                found = look.finish(run.step, self._rate, first_step, is_even=not self._rare.gained)
                self._searched = True
                self._suspects = max(found, self._suspects, key=_is_known) if found else self._suspects
        finally:
            look.drop()
        del look  # its numbers are given back
        self._sizes.leave_out(before)
        if not self._suspects:
            return
        leak = self._verdict(run)
        _emit(run, leak)
        if self._live.alarm is None:
            self._warn(run, run.step)
        elif self._suspects[0].allocated_at:
            _print(run, f"{_held(self._suspects[0], leak)}.")

    def _trends(self) -> dict[str, Trend]:
        """The present judgement of each size; workers that have just begun are judged by those before them."""
        trends = {name: judge(series.points, floor_of(name)) for name, series in self._series.items()}
        workers = trends.get("workers")
        if self._past_workers is not None and (workers is None or workers.kind == "not enough data"):
            trends["workers"] = self._past_workers
        return trends

    def _verdict(self, run: RunInfo) -> LeakReport:
        from forgather_mem.diagnose.leaks.verdict import unexplained, verdict_of

        trends = self._trends()
        workers = trends.get("workers")
        if workers is not None and workers.kind == "leak":
            from forgather_mem.diagnose.leaks.worker_code import loader_of, worker_suspects

            found = worker_suspects(loader_of(self._loader()), workers.per_step, run.header.micro_batches)
            if found:  # at the end of a script its loader may be gone
                self._suspects = [*(one for one in self._suspects if one.kind != "workers"), *found]
        gains = unexplained(self._totals, self._series, trends)
        leak = verdict_of(trends, self._suspects, run.step, gains, searched=self._searched)
        first = min((series.points[0][0] for series in self._series.values() if series.points), default=0)
        # What grew from the first reading on, some steps after the first step, is told from that step on
        leak = replace(leak, since_step=self._first_step + 1) if 0 < leak.since_step <= first else leak
        growing = [name for name, trend in trends.items() if trend.kind == "leak"]
        if leak.verdict != "leak":
            return leak
        return self._rare.told(replace(leak, full_at_step=self._full_at(run.step, leak.bytes_per_step, growing)))

    def _full_at(self, step: int, rate: float, growing: Collection[str]) -> int | None:
        """When memory will be full; the process may grow faster than what leaks, which lies among what is freed."""
        pace = 0.0 if "workers" in growing else self._totals.get("process", Series()).rate_at_end(floor_of("process"))
        return full_at(step, max(rate, pace), "device" in growing)


def _emit(run: RunInfo, leak: LeakReport) -> None:
    from forgather_mem.telemetry.report_schema import to_dict

    run.emit(Finding(kind="leak", step=run.step, text=_sentence(leak), data=to_dict(leak)))


def _sentence(leak: LeakReport) -> str:
    """The verdict as a text."""
    if leak.undecided and leak.why:
        return f"{leak.verdict}: {leak.why}"
    if leak.verdict != "leak":
        kept = f"; {leak.why}" if leak.why else ""
        return f"{leak.verdict}: under {format_bytes(leak.bytes_per_step_high)} a step{kept}"
    held = [f"held by {one.held_by}, {one.line_is} at {one.allocated_at}" for one in leak.suspects[:3] if one.held_by]
    return "\n".join([f"leak: {format_bytes(leak.bytes_per_step * leak.per_steps)} {leak.per}", *held])


def _held(top: Suspect, leak: LeakReport) -> str:
    """Who holds it, in words."""
    made = f", {top.line_is} at {top.allocated_at}" if top.allocated_at else ""
    many = f", {format_pace(top.count_per_step)}" if top.count_per_step and leak.per_steps == 1 else ""
    holder = f"held by {top.held_by}" if top.held_by else "holder not found"
    return f"{holder}{many}{made}" + (f"; {top.bounded}, so it may not be a leak" if top.bounded else "")


def _print(run: RunInfo, text: str) -> None:
    """Print a live line of 80 columns, even without a console sink."""
    run.print_line(textwrap.fill(f"forgather-mem: step {run.step:,}: {text}", 80, subsequent_indent=" " * 15))


def _is_known(suspects: Sequence[Suspect]) -> tuple[bool, bool]:
    """What these suspects tell: a holder, and a line."""
    known = lasting(suspects)
    return any(one.held_by for one in known), any(one.allocated_at for one in known[:1])


@dataclass(slots=True)
class _Gained:
    """Since the first of a kind: how many more there were, and what was gained with and without them."""

    first_step: int
    step: int
    count: int = 0
    beside: float = 0.0
    without: float = 0.0
    steps_without: int = 0

    @property
    def is_all(self) -> bool:
        """Whether it grows with them, and hardly as fast between, seen in as many steps as from one to the next.

        Later on readings lie so far apart that one of them is between any two.
        """
        steps, grown = self.step - self.first_step, self.beside + self.without
        is_seen = self.count >= GROWTH.fewest_edges and self.count * self.steps_without >= steps
        return is_seen and steps * abs(self.without) <= (1 - LEAK.sure_frac) * grown * self.steps_without


class RarePhases:
    """Hears of the phases that don't come in each step; of each kind only sums are kept.

    What such a phase brings may come shortly before or after it is told of, so what counts is the stretch between two
    readings in which it ends.

    Attributes:
        gained: By those that have been. Steps between two looks may then be others than the rest.
    """

    wants_begin = False  # of the phases of a step

    def __init__(self, run: RunInfo) -> None:
        self._run, self._then, self._step = run, 0.0, run.step
        self.gained: dict[str, _Gained] = {}
        self._ended: set[str] = set()

    def phase_begin(self, phase: str) -> None:
        """Only its end matters."""

    def phase_end(self, phase: str) -> None:
        # A training's start lies between no two steps
        one = self.gained.setdefault(phase, _Gained(self._run.step, self._run.step)) if phase in _UNITS else None
        if one is not None and one.step < self._run.step:
            one.step, one.count = self._run.step, one.count + 1
            self._ended.add(phase)

    def read(self, step: int, values: Mapping[str, float]) -> None:
        """What was read after this step."""
        if "native" not in values:
            return
        now, steps = sum(values.get(name, 0.0) for name in ("native", "objects", "device", "pinned")), step - self._step
        for phase, one in self.gained.items():
            if phase in self._ended:
                one.beside += now - self._then
            elif one.count:
                one.without += now - self._then
                one.steps_without += steps
        self._then, self._step = now, step
        self._ended.clear()

    def rest(self, step: int) -> int:
        """How many steps came after the last phase, where it grows with phases only: as many as bring nothing yet."""
        return sum(step - one.step for _, one in self._unit())

    def _unit(self) -> Sequence[tuple[Unit, _Gained]]:
        """The only kind of phase with which it grows, if there is one."""
        found = [(per, one) for phase, per in _UNITS.items() if (one := self.gained.get(phase)) and one.is_all]
        return found if len(found) == 1 else []

    def told(self, leak: LeakReport) -> LeakReport:
        """The leak with its unit: the only kind of phase with which it grows."""
        for per, one in self._unit():
            steps = (one.step - one.first_step) / one.count
            since = one.first_step + int(max(0, leak.since_step - one.first_step) / steps) * steps
            leak = replace(leak, per=per, per_steps=steps, since_step=round(since))
        return leak
