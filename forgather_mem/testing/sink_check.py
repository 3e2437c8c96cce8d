"""Whether a sink may be given to a training."""

from __future__ import annotations

import contextlib
import copy
import gc
import resource
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from forgather_mem.telemetry.plain_numbers import plain_numbers
from forgather_mem.telemetry.records import Finding, Sample, Sink
from forgather_mem.testing.small_run import SmallRun, check_members, files_below, in_child, readings, require, trainings

_ADVICE = (
    "a sink handles its own I/O errors (drop, count, say so in problems()) and takes whatever finite numbers and texts "
    "there are"
)
_METHODS = ("begin", "tell", "say", "log_values", "evaluation_values", "problems", "end")


def check_sink(make_sink: Callable[[], Sink], *, folder: Path | None = None) -> None:
    """Drive sinks through small trainings as the engine would, and look at what they do.

    A sink gets records with every kind of metric, at all events and with changing names, and findings; it serves two
    trainings, one that restarts without an end, one without a folder, one on another rank; a process that has forked
    writes to it no more; its disk is full. Takes half a second.

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
    require(
        callable(getattr(sink, "write", None)), f"{type(sink).__name__} has no method write(sample): a sink needs it"
    )
    _train(sink, folder, "in its first training", forks=True)
    wrote = bool(files_below(folder))
    _train(sink, folder, "in a second training of the same object")
    _train(sink, folder, "in a training that restarts without an end", restarts=True)
    with contextlib.chdir(folder):  # it may write there
        _train(sink, None, "in a training without an output folder")
    _train(make_sink(), folder, "on the second of two ranks", rank=1)
    found = in_child(lambda: _with_a_full_disk(make_sink, folder, wrote))
    require(found is None, f"{type(sink).__name__} {found}")


class _Before:
    """The sink before the one that is checked: keeps a copy of each record and finding."""

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self.finding: Finding | None = None

    def write(self, sample: Sample) -> None:
        self.sample = copy.deepcopy(sample)

    def tell(self, finding: Finding) -> None:
        self.finding = copy.deepcopy(finding)


class _After:
    """The sink behind it: sees whether the record and the finding are as they were."""

    def __init__(self, name: str, before: _Before) -> None:
        self._name, self._before = name, before

    def write(self, sample: Sample) -> None:
        require(sample == self._before.sample, f"{self._name}.write has changed the record; other sinks get it too")

    def tell(self, finding: Finding) -> None:
        require(
            finding == self._before.finding, f"{self._name}.tell has changed the finding's data; other sinks get it too"
        )


def _train(
    sink: Sink, folder: Path | None, where: str, *, rank: int = 0, forks: bool = False, restarts: bool = False
) -> None:
    name, before = type(sink).__name__, _Before()
    small = SmallRun(folder, [readings], [before, sink, _After(name, before)], rank=rank)
    other = SmallRun(folder, [readings], [sink])
    with trainings(name, where, _ADVICE, small, other):
        if restarts:
            other.train()
        small.train()
        if forks and folder is not None:
            _fork(sink, small, folder)
        _check_answers(sink, small)
        small.close()
        small.event = "end, once more"
        getattr(sink, "end", bool)(small.run)
        other.close("exception")


def _check_answers(sink: object, small: SmallRun) -> None:
    name, small.event = type(sink).__name__, "log_values"
    answer = getattr(sink, "log_values", dict)(*[small.state.global_step] * hasattr(sink, "log_values"))
    require(
        plain_numbers(answer) == dict(answer), f"{name}.log_values gave {answer!r:.200}: give finite numbers by name"
    )
    small.event = "problems"
    problem = getattr(sink, "problems", lambda: None)()
    require(
        problem is None or (isinstance(problem, str) and problem),
        f"{name}.problems gave {problem!r:.100}: give one sentence, or None when everything was written",
    )


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


def _with_a_full_disk(make_sink: Callable[[], Sink], folder: Path, wrote: bool) -> str | None:
    """What is wrong on a disk that takes nothing; in a child, since the limit is the process's."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    sink = make_sink()
    small = SmallRun(folder / "full", [readings], [sink])
    try:
        small.begin()
    except OSError:
        return None  # it says so at once; the run goes on without it
    try:
        small.train()
        problem = getattr(sink, "problems", lambda: None)()
        small.close()
    except Exception as error:  # noqa: BLE001  # told to the parent
        return f"raised {error!r} on a full disk, at {small.event}: drop the record, count it, say so in problems()"
    if wrote and not problem:
        return "wrote nothing on a full disk, and problems() says nothing: count what is dropped, and say so there"
    return None
