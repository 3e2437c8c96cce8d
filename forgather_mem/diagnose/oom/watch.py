"""Records what a run needs to explain an out-of-memory error, and can still report it when no memory is left."""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forgather_mem.actions.trim import trim_host
from forgather_mem.diagnose.oom.batch_shapes import Batch, BatchFinder, news_of
from forgather_mem.diagnose.oom.batch_uses import BatchUses
from forgather_mem.diagnose.oom.context import RunSettings, settings_of
from forgather_mem.source.source_lines import is_user_file
from forgather_mem.system.memory_limit import Reserve, near_a_kill
from forgather_mem.system.procfs import own_memory
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.events import OPAQUE_PHASES, STEP_PHASES
from forgather_mem.telemetry.records import NOTHING, Finding, Moment, RunInfo, Sample

if TYPE_CHECKING:
    # What explains a failure is loaded when one happens, once the reserve is released: it takes more than a MiB.
    from forgather_mem.diagnose.oom.allocator_snapshot import Snapshot
    from forgather_mem.diagnose.oom.failure import Failure
    from forgather_mem.diagnose.oom.recognition import OutOfMemory
    from forgather_mem.telemetry.report import Change, OomReport

_RESERVED_FRAC = 1 / 4  # at most, of what the first steps leave below a limit of this process
_LARGER = 1.1  # times the largest batch told so far: that is told, too
_TELLING_STEPS = 2
# Of a limit at which the kernel kills, then of half of what is left: who holds the most is told there, since a process
# that is killed can't. What an evaluation collects is often joined at its end, which takes as much again, and no pass
# comes before that. Guesses; looking takes 11 to 60 ms.
_AHEAD = {"other": 0.8, "evaluate": 0.5}
_LOOK_EVERY_S = 0.02  # between passes: it takes 25 to 75 us, and memory is filled by 80 MiB meanwhile
_MOST_PASSES = 4096  # of one step, whose beginnings are kept


class OutOfMemoryWatch:
    """The work of `OOMReporter`, in one training.

    Args:
        snapshot: Record the device's allocations, and write them to a file when memory runs out.

    Attributes:
        uses: The batches so far, and what the first steps took.
        wants_begin: Whether it is told of the phases of the steps.
    """

    def __init__(self, run: RunInfo, snapshot: bool = False) -> None:
        self._snapshot: Snapshot | None = None
        if snapshot:
            from forgather_mem.diagnose.oom.allocator_snapshot import Snapshot

            self._snapshot = Snapshot()
        self.wants_begin, self._run = True, run
        self.uses, self._batch_of = BatchUses(), BatchFinder()
        self._reserve = Reserve(run_session.RESERVE_BYTES)
        self._model = self._optimizer = _nothing
        self._settings: RunSettings | None = None
        self._failure: Failure | None = None
        self._unexamined: tuple[OomReport, str] | None = None  # instead of it
        self._first_step, self._told_size = run.step, 0
        self._passes: deque[int] = deque(maxlen=_MOST_PASSES)  # autograd's numbers where those of this step began
        self._snapshot_path: str | None = None
        self._ahead = {
            one: at if run.header.limit_kind in ("cgroup", "host") else math.inf for one, at in _AHEAD.items()
        }
        self._is_near, self._looked_s = False, 0.0
        run.at_close(self._reserve.release)
        run_session.RESERVE.clear()
        self._reserve.take()
        is_user_file(__file__)  # finds out whose files are whose, while there is memory for it
        self._before_bytes, self._handled = own_memory().anonymous_bytes, id(sys.exception())
        run.watch_phases(self)
        run.watch_batches(self._see)
        run.watch_failure(self._failed)
        run.at_close(self._report)
        if self._snapshot is not None:
            run.at_close(self._snapshot.stop)
            self._snapshot.start()

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        model, optimizer = map(moment.objects.get, ("model", "optimizer"))  # of an observed loop others may follow
        self._model, self._optimizer = _weakly(model), _weakly(optimizer)
        if self._settings is None:
            self._settings = settings_of(moment.args, model, self._run.trainer())
        if moment.event == "step_end":
            self._passes.clear()
            self.uses.step_ended()
        if moment.event in ("step_end", "prediction_step"):
            self._passes.append(_operation_number())
            self._look_ahead()
        if moment.event == "step_end" and moment.step - self._first_step == _TELLING_STEPS:
            self._settle()
        return NOTHING

    def is_urgent(self) -> bool:
        return self.uses.is_urgent or self._is_near

    def _settle(self) -> None:
        """Resize the reserve, now that the memory of a step is known: to a part of what is left below this process's
        limit. How much is trained is known then, too, and no more has to be read."""
        self.wants_begin = self.uses.reading = False
        left_bytes = self.uses.left_at_peak_bytes()
        if left_bytes is not None:
            trim_host()  # importing what watches has left 3 to 4 MiB of free heap in a plain loop
            self._reserve.take(_RESERVED_FRAC * left_bytes)

    def _look_ahead(self) -> None:
        """Tell who holds the most, and what may help, if the kernel may soon kill."""
        used_bytes, read = own_memory().anonymous_bytes, self._run.latest
        peak, rss, anonymous = [read(f"host/{name}_bytes") or 0.0 for name in ("rss_peak", "rss", "anon")]
        highest_bytes = max(used_bytes, peak - rss + anonymous)  # in the next step as in those before
        # Others of the group count, too; all of it is read less often
        frac = max(read("host/limit_used_frac") or 0.0, highest_bytes / (self._run.header.limit_bytes or 1))
        step, phase = self._run.step, "evaluate" if self._run.phase == "evaluate" else "other"
        self._is_near = 2 * frac > self._ahead[phase]  # from here on it is looked after each step
        if frac < self._ahead[phase] or near_a_kill(int(highest_bytes) - used_bytes) is not None:
            return
        self._ahead[phase] = (frac + 1) / 2
        from forgather_mem.diagnose.oom.explanation import explained, held_beside
        from forgather_mem.diagnose.oom.failure import Failure
        from forgather_mem.heap.census import take_census
        from forgather_mem.source.syntax import forget_trees

        # In an evaluation all graphs are of passes that are over
        found = take_census((), self._model(), self._optimizer(), self._passes, in_step=phase == "other")
        failure = Failure(phase=phase, used_bytes=used_bytes, census=found, keeps_graphs=True)
        oom, advice = explained(failure)
        if oom.why_now:
            what = {"what": "\n".join(f"{size} {part}" for part, size in held_beside(failure).items())}
            self._run.emit(Finding(kind="held", step=step, text=f"After step {step:,}: {oom.why_now}", data=what))
        self._tell_advice(step, advice)
        forget_trees()
        trim_host()  # what was loaded and read lies where the next batch would be, which finds another place

    def phase_begin(self, phase: str) -> None:
        """Nothing is read there."""

    def phase_end(self, phase: str) -> None:
        # A phase left by an exception has not finished
        if self._run.failed_phase is None:
            self.uses.phase_ended(phase)

    def _see(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> None:
        self._passes.append(_operation_number())
        # Beside the end of the step before: what looks like a step may be an evaluation
        if len(self._passes) > 2 and (now_s := time.monotonic()) > self._looked_s + _LOOK_EVERY_S:
            self._looked_s = now_s
            self._look_ahead()
        batch = self._batch_of(arguments, keywords)
        if batch is self.uses.batch:  # as the last one
            return
        self.uses.see(batch)
        if batch is not None and batch.size > _LARGER * self._told_size:  # before it runs: it may be the last
            self._told_size = batch.size
            self._emit_batch(batch)

    def _emit_batch(self, batch: Batch) -> None:
        shape = {"batch.rows": batch.rows, "batch.length": batch.length, "batch.sizes": batch.sizes}
        settings = {name: str(size) for name, size in shape.items() if size}
        news = news_of(batch, self.uses.largest, is_first=self._run.step == self._first_step)
        self._run.emit(Finding(kind="settings", step=self._run.step, text=news or "settings", data=settings))

    def _failed(self, error: BaseException) -> None:
        """An error ends the training: record everything that can be known while its frames are alive."""
        reserve_bytes = self._reserve.size_bytes
        self._reserve.release()
        from forgather_mem.diagnose.oom.recognition import recognise, unexamined

        run, found = self._run, recognise(error)
        if found is None:
            return
        told = run.failed_phase or run.phase
        is_between = told == "data" and run.in_step is False  # of an observed loop
        told = "other" if is_between else told
        limit = near_a_kill()
        if limit is not None:
            oom = unexamined(found, limit, told, run.step + bool(run.in_step), run.rank)
            self._unexamined = oom, f"out of memory in {told}: {found}"
            return
        self._failure = self._looked_into(error, found, told, reserve_bytes, is_between)
        if self._snapshot is not None and found.where == "device" and run.folder is not None:
            self._snapshot_path = self._snapshot.write(run.folder, run.rank)

    def _looked_into(
        self, error: BaseException, found: OutOfMemory, told: str, reserve_bytes: int, is_between: bool
    ) -> Failure:
        """What the error, its traceback and the run so far tell."""
        from forgather_mem.diagnose.oom.memory_in_use import look_at_memory
        from forgather_mem.diagnose.oom.place import failure_at, stepping_optimizer

        run, uses, model = self._run, self.uses, self._model()
        optimizer = stepping_optimizer(error) or self._optimizer()
        failure = failure_at(error, found, model, optimizer, told=told, passes=self._passes)
        # In between a model is made, copied or cast; or called without a graph, for no step
        if run.step > self._first_step and failure.phase in ("startup", "forward" if is_between else ""):
            failure.phase = "other"
        phase = failure.phase
        failure.in_training, failure.rank = True, run.rank
        failure.settings = self._settings or failure.settings
        failure.is_first = phase not in uses.ended
        is_told = run.in_step or phase == "data"  # of a loop of its own no step has begun by then
        in_step = phase in STEP_PHASES if run.in_step is None else is_told and told not in OPAQUE_PHASES
        if phase == "evaluate" and run.trainer() is None:  # with gradients its passes look like those of a step
            in_step = False
        failure.step, failure.steps_done = run.step + in_step, run.step - self._first_step
        if phase in STEP_PHASES and phase != "data" and uses.batch is not None:  # in that it does not exist yet
            failure.batch = uses.batch
            self._emit_batch(uses.batch)
        failure.largest = uses.largest
        before_bytes = None if id(error) == self._handled else self._before_bytes  # it has begun to explain that one
        sizes = {"before_bytes": before_bytes, "between_bytes": uses.between_bytes}
        workers_bytes = int(run.latest("workers/pss_bytes") or 0)
        look_at_memory(failure, model, optimizer, **sizes, workers_bytes=workers_bytes, reserve_bytes=reserve_bytes)
        return failure

    def _report(self) -> None:
        """Called after all works have ended, so that the verdict about leaks exists."""
        run, uses, failure = self._run, self.uses, self._failure
        if failure is None and run.told.advice:  # it was not killed
            self._tell_advice(run.step, ())
        if failure is None and uses.largest is not None:
            self._emit_batch(uses.largest)
        if self._unexamined is not None:
            self._emit_failure(*self._unexamined, ())
        elif failure is not None:
            from forgather_mem.diagnose.oom.explanation import explained, sentence

            run.reach(self._first_step + failure.steps_done)
            oom, advice = explained(failure, run.told.leak)
            self._emit_failure(oom, sentence(failure), advice)

    def _emit_failure(self, oom: OomReport, text: str, advice: Sequence[Change]) -> None:
        from forgather_mem.telemetry.report_schema import to_dict

        run = self._run
        # One of two reporters, a template's and the user's, may have written it already
        written = None if run.told.oom is None else run.told.oom.snapshot
        oom = replace(oom, snapshot=self._snapshot_path or written)
        run.emit(Finding(kind="oom", step=oom.step, text=text, data=to_dict(oom)))
        self._tell_advice(oom.step, advice)

    def _tell_advice(self, step: int, advice: Sequence[Change]) -> None:
        from forgather_mem.telemetry.report_schema import to_dict

        self._run.emit(Finding(kind="advice", step=step, text="", data={"advice": [*map(to_dict, advice)]}))


def _operation_number() -> int:
    """The number that autograd will give to this thread's next operation."""
    ask = getattr(getattr(sys.modules.get("torch"), "autograd", None), "_get_sequence_nr", None)
    return int(ask()) if ask is not None else 0


def _weakly(value: Any) -> Callable[[], Any]:
    """A weak reference; of None, and of what bears none, as what stands for several optimizers, it leads to nothing."""
    try:
        return weakref.ref(value)
    except TypeError:
        return _nothing


def _nothing() -> None:
    """Where nobody is."""
