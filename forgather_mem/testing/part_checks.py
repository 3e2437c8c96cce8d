"""Whether a probe, an action or a sink may be given to a training."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import resource
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from forgather_mem.telemetry.events import EVENTS
from forgather_mem.telemetry.plain_numbers import plain_numbers
from forgather_mem.telemetry.records import Begins, Moment, Objects, RunInfo, Sample, Sink, Work
from forgather_mem.telemetry.report import Action
from forgather_mem.telemetry.rule import name_of
from forgather_mem.testing.small_run import SmallRun, check_members, files_below, in_child, readings, require, trainings

_OPEN_FILES, _THREADS = "the number of open files", "the number of threads"
_MAY_BE_KEPT = (_OPEN_FILES, _THREADS)  # by the first training, for all later ones
_BOOKS = ("", *get_args(Action))
_ADVICE_FOR_WORKS = (
    "what can't be read is left out; what an event lacks (moment.objects is empty without a trainer) is no error"
)


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
    _check_work_members(work)
    with tempfile.TemporaryDirectory() as folder:
        before = _process()
        _train_with(work, Path(folder), objects, "in its first training", events=EVENTS)
        before |= {what: number for what, number in _process().items() if what in _MAY_BE_KEPT}
        _train_with(work, Path(folder), objects, "in a second training of the same object")
        _train_with(work, Path(folder), objects, "in a training that restarts without an end", restarts=True)
        _train_with(make_work(), None, objects, "without an output folder, on the second of two ranks", rank=1)
        after = _process()
    changed = [what for what in before if after[what] != before[what]]
    if changed:
        raise AssertionError(
            f"{type(work).__name__} leaves {' and '.join(changed)} changed ({before[changed[0]]} before, "
            f"{after[changed[0]]} after its end): put back, by run.at_close(), what was changed"
        )


def _check_work_members(work: object) -> None:
    name = type(work).__name__
    check_members(work, "make_work", ("begin", "end", "is_urgent"), "reading")
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
        given = f"{name}.begin() gave {self.called!r:.100}: return what is called in this training"
        require(callable(self.called), given)
        answer: Mapping[str, float] = self.called(moment, sample)
        given = f"{name} gave {answer!r:.100} at {event}: return numbers by name, {{}} for nothing"
        require(isinstance(answer, Mapping), given)
        try:
            fine = plain_numbers(answer) == dict(answer)
        except (TypeError, ValueError, AttributeError, OverflowError):
            fine = False
        require(fine, f"{name} gave {answer!r:.200} at {event}: finite numbers by name; leave out what is unknown")
        require(sample.values == before, f"{name} has changed the sample at {event}: return your values instead")
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.called if name in ("end", "is_urgent") else self._work, name)


def _train_with(
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
    others = [SmallRun(folder, [work], objects=objects, events=events)] * restarts
    with trainings(name_of(work), where, _ADVICE_FOR_WORKS, small, *others):
        small.train()
        small.event = "is_urgent"
        getattr(part, "is_urgent", bool)()
        small.close()


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


# ---- sinks ----

_ADVICE = (
    "a sink handles its own I/O errors (drop, count, say so in problems()) and takes whatever finite numbers and texts "
    "there are"
)
# After those of a run that was resumed, so that no other number in a file is one; more than a usual buffer holds
_STEPS = range(7_001, 7_151)
_LATE = _STEPS[100:]  # a name comes with the first of these
_METHODS = ("begin", "tell", "say", "log_values", "evaluation_values", "problems", "end")


def check_sink(make_sink: Callable[[], Sink], *, folder: Path | None = None) -> None:
    """Drive sinks through small trainings as the engine would, and look at what they do.

    A sink gets records with every kind of metric, at all events and with changing names, and findings; it serves two
    trainings, one that restarts without an end, one without a folder, one on another rank; a process that has forked
    writes to it no more; its disk is full, or there is no place for its file. In what it has written as text
    below `folder`, records that are known by their numbers are there once, to the last. Takes a second.

    Args:
        make_sink: Makes a new sink that writes below `folder`, or below the folder of its run.
        folder: Default: a temporary one.

    Raises:
        AssertionError: what is wrong, at which call, and what to do about it.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return check_sink(make_sink, folder=Path(temporary))
    sink = make_sink()
    check_members(sink, "make_sink", _METHODS, "key")
    writes = callable(getattr(sink, "write", None))
    require(writes, f"{type(sink).__name__} has no method write(sample): a sink needs it")
    _train(sink, folder, "in its first training", forks=True)
    wrote = bool(files_below(folder))
    _train(sink, folder, "in a second training of the same object")
    _train(sink, folder, "in a training that restarts without an end", restarts=True)
    with contextlib.chdir(folder):  # it may write there
        _train(sink, None, "in a training without an output folder")
    _look_at_files(make_sink(), folder)
    _on_rank_1(make_sink(), folder)
    for where, output in (("on a full disk", "full"), ("where its folder can't be made", "file/out")):
        found = in_child(lambda where=where, output=output: _with_faults(make_sink, folder, output, where, wrote))  # type: ignore[misc]
        require(found is None, f"{type(sink).__name__} {found}")


def _train(
    sink: Sink, folder: Path | None, where: str, *, rank: int = 0, forks: bool = False, restarts: bool = False
) -> None:
    small = SmallRun(folder, [readings], [sink], rank=rank)
    others = [SmallRun(folder, [readings], [sink])] * restarts
    with trainings(type(sink).__name__, where, _ADVICE, small, *others):
        small.train()
        if forks and folder is not None:
            _fork(sink, small, folder)
        small.close()
        small.event = "end, once more"
        getattr(sink, "end", bool)(small.run)


def _fork(sink: object, small: SmallRun, folder: Path) -> None:
    """A data worker is forked, lives as long as it likes and ends: the files are the parent's."""
    small.event = "a fork"
    before = files_below(folder)

    def child() -> None:
        small.close()
        vars(sink).clear() if hasattr(sink, "__dict__") else None  # what a process does when it ends: files are flushed
        gc.collect()

    found = in_child(child)
    name = type(sink).__name__
    require(found is None, f"{name} {found}, in a forked child that ends")
    require(
        files_below(folder) == before,
        f"a forked child that ended has changed the files of {name}: what stands in a buffer is written twice; flush "
        "after each record, or write with os.write",
    )


def _look_at_files(sink: Sink, folder: Path) -> None:
    """Whether each record is in the files once, with its step, when the training has ended."""
    name, before = type(sink).__name__, files_below(folder)
    small = SmallRun(folder, [_mark], [sink], events=("step_end",))
    with trainings(name, "in a training that was resumed", _ADVICE, small):
        small.state.global_step = _STEPS[0] - 1
        small.train(len(_STEPS))
        small.close()
        problem = getattr(sink, "problems", bool)()
    after = files_below(folder)
    empty = [path for path, content in after.items() if not content]
    require(not empty, f"{name} has left {empty[:1]} empty: write in end() what waits in a buffer")
    for path, content in after.items():
        old = before.get(path, b"")
        new = content[len(old) :] if content.startswith(old) else content
        _check_records(f"{name}, in {path}:", new, is_told=problem is not None)


def _mark(moment: Moment, sample: Sample) -> dict[str, float]:
    """A number known by its step, before it one that is missing now and then, and behind it one that comes late."""
    first = {} if moment.step % 3 else {"mine/at_times": 0.25}
    last = {"mine/late": float(f"200{moment.step}")} if moment.step in _LATE else {}
    return {**first, "mine/mark": float(f"100{moment.step}"), **last}


def _check_records(where: str, content: bytes, *, is_told: bool) -> None:
    """Whether each mark is there once; of a late one, unless the sink says that something is missing."""
    counts = _counts(content, 100, _STEPS)
    found = [step for step, count in zip(_STEPS, counts, strict=True) if count]
    require(max(counts) < 2, f"{where} a record was written twice")
    # One of every few, or the last ones, may be all that it keeps; who has the first two, or nearly all, keeps each
    keeps_each = found[:2] == [*_STEPS[:2]] or len(found) > 0.9 * len(_STEPS)
    lost = len(_STEPS) - len(found) if keeps_each else 0
    require(not lost, f"{where} {lost} of {len(_STEPS)} records were lost: write in end() what waits in a buffer")
    late = _counts(content, 200, _LATE).count(0) if keeps_each and not is_told else 0
    require(
        not late,
        f"{where} {late} of {len(_LATE)} values were lost whose name came after the first record: write each with its "
        "name, begin a new file when there is a new one, or say in problems() what is left out",
    )


def _counts(content: bytes, first: int, steps: Sequence[int]) -> list[int]:
    """How often the mark of each step is there, written as text."""
    words = Counter(re.findall(rb"(?<![\d.])\d+", content))
    return [words[b"%d%d" % (first, step)] for step in steps]


def _on_rank_1(sink: Sink, folder: Path) -> None:
    before = files_below(folder)
    _train(sink, folder, "on the second of two ranks", rank=1)
    after, name = files_below(folder), type(sink).__name__
    changed = [path for path in before if after.get(path) != before[path]]
    require(not changed, f"{name} has changed {changed} of rank 0 on rank 1: write on rank 0 only, or a file for each")


def _with_faults(make_sink: Callable[[], Sink], folder: Path, output: str, where: str, wrote: bool) -> str | None:
    """What is wrong where nothing can be written; in a child, since a limit is the process's."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if output == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a disk that takes nothing
    (folder / "file").touch()  # no folder can be made in it
    sink, before = make_sink(), b"".join(files_below(folder).values())  # of an empty one nothing
    small = SmallRun(folder / output, [readings], [sink])
    try:
        small.begin()
    except OSError:
        return None  # it says so at once; the run goes on without it
    try:
        small.train()
        problem = getattr(sink, "problems", lambda: None)()
        small.close()
    except Exception as error:  # noqa: BLE001  # told to the parent
        return f"raised {error!r} {where}, at {small.event}: drop the record, count it, say so in problems()"
    if wrote and not problem and b"".join(files_below(folder).values()) == before:
        return f"wrote nothing {where}, and problems() says nothing: count what is dropped, and say so there"
    return None
