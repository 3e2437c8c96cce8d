"""Whether a probe or an action may be given to a training."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from forgather_mem.telemetry.events import EVENTS
from forgather_mem.telemetry.plain_numbers import plain_numbers
from forgather_mem.telemetry.records import Begins, Moment, Objects, RunInfo, Sample, Work
from forgather_mem.telemetry.report import Action
from forgather_mem.telemetry.rule import name_of
from forgather_mem.testing.small_run import SmallRun, check_members, require, trainings

_OPEN_FILES, _THREADS = "the number of open files", "the number of threads"
_MAY_BE_KEPT = (_OPEN_FILES, _THREADS)  # by the first training, for all later ones
_OF_A_RUN = ("end", "give_back", "is_urgent")
_BOOKS = ("", *get_args(Action))
_ADVICE = "what can't be read is left out; what an event lacks (moment.objects is empty without a trainer) is no error"


def check_work(make_work: Callable[[], Work | Begins], *, objects: Objects | None = None) -> None:
    """Drive a probe or an action through small trainings as the engine would, and look at what it does.

    It is called at every event, serves two trainings, one that restarts without an end, and one on another rank. What
    it has changed in the process (the garbage collector, open files, threads) must be as before when it has ended.

    Args:
        make_work: Makes a new one.
        objects: What the trainer passes to callbacks, if it needs that: {"model": model, "optimizer": optimizer}.

    Raises:
        AssertionError: what is wrong, at which call, and what to do about it.
    """
    work = make_work()
    _check_members(work)
    with tempfile.TemporaryDirectory() as folder:
        before = _process()
        _train(work, Path(folder), objects, "in its first training", events=EVENTS)
        before |= {what: number for what, number in _process().items() if what in _MAY_BE_KEPT}
        _train(work, Path(folder), objects, "in a second training of the same object")
        _train(work, Path(folder), objects, "in a training that restarts without an end", restarts=True)
        _train(make_work(), None, objects, "without an output folder, on the second of two ranks", rank=1)
        after = _process()
    changed = [what for what in before if after[what] != before[what]]
    if changed:
        raise AssertionError(
            f"{type(work).__name__} leaves {' and '.join(changed)} changed ({before[changed[0]]} before, "
            f"{after[changed[0]]} after its end): put back, by run.at_close() or in give_back(), what was changed"
        )


def _check_members(work: object) -> None:
    name = type(work).__name__
    check_members(work, "make_work", ("begin", "end", "give_back", "is_urgent"), "reading")
    require(
        callable(work) or callable(getattr(work, "begin", None)),
        f"{name} can't be called: a probe or an action needs __call__(moment, sample), or a begin(run) that returns it",
    )
    books = getattr(work, "books", "")
    require(books in _BOOKS, f"{name}.books is {books!r}: the ledger knows {_BOOKS[1:]}")


class _Part:
    """A work as the engine sees it: all of its members, and its answers checked before what is wrong is left out.

    Attributes:
        called: What is called in the training: what it has begun, or itself.
    """

    small: SmallRun

    def __init__(self, work: Work | Begins) -> None:
        self._work = work
        self.called: Any = work

    def begin(self, run: RunInfo) -> None:
        begun = getattr(self._work, "begin", bool)(run)
        self.called = begun if callable(begun) else self._work

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        before, name, event = dict(sample.values), name_of(self._work), self.small.event
        require(
            callable(self.called), f"{name}.begin() gave {self.called!r:.100}: return what is called in this training"
        )
        answer: Mapping[str, float] = self.called(moment, sample)
        require(
            isinstance(answer, Mapping),
            f"{name} gave {answer!r:.100} at {event}: return numbers by name, {{}} for nothing",
        )
        try:
            fine = plain_numbers(answer) == dict(answer)
        except (TypeError, ValueError, AttributeError, OverflowError):
            fine = False
        require(fine, f"{name} gave {answer!r:.200} at {event}: finite numbers by name; leave out what is unknown")
        require(sample.values == before, f"{name} has changed the sample at {event}: return your values instead")
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.called if name in _OF_A_RUN else self._work, name)


def _train(
    work: Work | Begins,
    folder: Path | None,
    objects: Objects | None,
    where: str,
    *,
    events: Sequence[str] = ("step_end", "evaluate"),
    rank: int = 0,
    restarts: bool = False,
) -> None:
    part = _Part(work)
    small = part.small = SmallRun(folder, [part], rank=rank, objects=objects, events=events)
    other = SmallRun(folder, [work], objects=objects, events=events)
    with trainings(name_of(work), where, _ADVICE, small, other):
        if restarts:
            other.train()
        small.train()
        small.event = "is_urgent"
        getattr(part, "is_urgent", bool)()
        small.close()
        for _ in range(2):
            small.event = "give_back, once more"
            getattr(part, "give_back", bool)()
        other.close("exception")


def _process() -> dict[str, object]:
    """What a work may change in the process, and has to put back."""
    gc.collect()
    return {
        "automatic garbage collection": gc.isenabled(),
        "gc.get_threshold()": gc.get_threshold(),
        "gc.callbacks": len(gc.callbacks),
        _OPEN_FILES: len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
        _THREADS: threading.active_count(),
    }
