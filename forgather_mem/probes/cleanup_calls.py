"""Counts the calls of gc.collect() and empty_cache() in this process: from which line, how often, to what effect."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from forgather_mem.system.allocator import gauge_now, modules_with_a_cache
from forgather_mem.system.procfs import PAGE_BYTES, KernelFile
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.protocols import RunInfo
from forgather_mem.telemetry.records import Finding, Moment, Sample
from forgather_mem.units import format_duration

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import CleanupCall

P = ParamSpec("P")
R = TypeVar("R")
COLLECT = "gc.collect"
_MAX_SITES = 1000
# Up to Python 3.13, automatic collections run only when a counter is above its threshold.
_COUNTERS_TELL = sys.version_info < (3, 14)
_COUNTING = "_forgather_mem_counting"
_US = str(Path(__file__).parent.parent) + os.sep
_LIBRARIES = tuple(
    {path.rstrip(os.sep) + os.sep for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))}
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class CleanupProbe:
    """Counts all clean-up calls while a training runs: the script's, its libraries', our own.

    Calls of `gc.collect()` are distinguished from automatic collections, and their lines found, without touching the
    function: through `gc.callbacks` and the caller's frame. `empty_cache` is wrapped in the loaded modules of torch,
    and restored at the end. This adds 1 us to an automatic collection and 10 us to a counted call, or more with a
    device. It returns no samples; the counts are reported as a finding: first when there are any, again whenever the
    number of calls has doubled, and at the end.

    Not seen: a call from a thread while another thread collects, and an `empty_cache` that was imported from its module
    by name before the training.
    """

    def __init__(self) -> None:
        self.reading: Hashable = (type(self),)
        self._ledger: _Calls | None = None
        self._collections: _Collections | None = None
        self._wrapped: list[tuple[ModuleType, Callable[..., object]]] = []
        self._tell_at = 1

    def begin(self, run: RunInfo) -> None:
        self.give_back()
        self._tell_at = 1
        self._ledger = calls = _Calls()
        self._collections = _Collections(calls)
        gc.callbacks.append(self._collections)
        self._wrap(calls)

    def end(self, run: RunInfo) -> None:
        if self._ledger is not None and self._ledger.sites:
            self._tell(run, self._ledger)
        self.give_back()

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        calls = self._ledger
        if calls is not None and calls.number >= self._tell_at:
            self._tell_at = 2 * calls.number
            self._tell(moment.run, calls)
        return _NOTHING

    def _tell(self, run: RunInfo, calls: _Calls) -> None:
        from forgather_mem.telemetry.report_schema import to_dict

        run.emit(
            Finding(
                kind="cleanup_calls",
                step=run.step,
                text=calls.text(),
                data={"calls": [to_dict(row) for row in calls.rows()]},
            )
        )

    def _wrap(self, calls: _Calls) -> None:
        by_function: dict[int, Callable[..., object]] = {}
        for name in modules_with_a_cache():
            module = sys.modules.get(name)
            function = vars(module).get("empty_cache") if module is not None else None
            if module is None or not callable(function):
                continue
            counted = by_function.get(id(function))
            if counted is None:
                counted = by_function[id(function)] = _counted(function, f"{name}.empty_cache", calls)
            vars(module)["empty_cache"] = counted
            self._wrapped.append((module, counted))

    def give_back(self) -> None:
        """As before `begin`, whatever has failed since. Idempotent."""
        if self._collections is not None:
            with contextlib.suppress(ValueError):  # the list was emptied elsewhere
                gc.callbacks.remove(self._collections)
        for module, counted in self._wrapped:
            getattr(counted, _COUNTING).calls = None
            if vars(module).get("empty_cache") is counted:  # what others have replaced since is theirs
                vars(module)["empty_cache"] = _uncounted(counted)
        if self._ledger is not None:
            self._ledger.close()
        self._ledger = self._collections = None
        self._wrapped = []

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_ledger": None, "_collections": None, "_wrapped": []}


_NOTHING: Mapping[str, float] = {}


@dataclass(slots=True)
class _Site:
    """All calls from one line."""

    calls: int = 0
    seconds: float = 0.0
    freed_bytes: int = 0


class _Calls:
    """The counts, by function, file and line.

    Attributes:
        number: Number of calls so far.
        inside: A counted call is running: calls inside it are part of it.
    """

    def __init__(self) -> None:
        self.number = 0
        self.inside = False
        self.sites: dict[tuple[str, str, int], _Site] = {}
        self.fence = FailureGuard()
        self._statm = KernelFile("/proc/self/statm")

    def add(self, what: str, file: str, line: int, seconds: float, freed_bytes: int) -> None:
        key = (what, file, line)
        site = self.sites.get(key)
        if site is None:
            if len(self.sites) >= _MAX_SITES:
                return
            site = self.sites[key] = _Site()
        self.number += 1
        site.calls += 1
        site.seconds += seconds
        site.freed_bytes += max(0, freed_bytes)

    def held_bytes(self) -> int:
        """Anonymous memory of the process plus live tensors on its device: what a collection can free."""
        try:
            fields = self._statm.read(128).split()
            held = (int(fields[1]) - int(fields[2])) * PAGE_BYTES
        except OSError:  # no /proc
            held = 0
        return held + (gauge_now("allocated_bytes") or 0)

    def rows(self) -> list[CleanupCall]:
        """The rows of the report, most expensive first."""
        from forgather_mem.telemetry.report import CleanupCall

        rows = []
        for (what, file, line), site in self.sites.items():
            shown, whose = file_and_origin(file)
            rows.append(CleanupCall(what=what, file=shown, line=line, whose=whose, **asdict(site)))
        return sorted(rows, key=lambda row: -row.seconds)

    def text(self) -> str:
        seconds = sum(site.seconds for site in self.sites.values())
        return f"{self.number:,} clean-up calls from {len(self.sites)} lines took {format_duration(seconds)}"

    def close(self) -> None:
        self._statm.close()


class _Collections:
    """The callable in `gc.callbacks`. Collections don't overlap, so one at a time is enough."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self._from: tuple[str, int] | None = None
        self._held_bytes = 0
        self._began_s = 0.0
        self._asked: dict[tuple[CodeType, int], bool] = {}

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        try:
            if phase == "start":
                self._from = None
                if self._is_automatic(info["generation"]):
                    return
                try:
                    frame = sys._getframe(1)
                except ValueError:  # the interpreter is shutting down
                    return
                self._from = (frame.f_code.co_filename, frame.f_lineno)
                self._held_bytes = self._calls.held_bytes()
                self._began_s = time.perf_counter()
            elif self._from is not None:
                (file, line), self._from = self._from, None
                now_s = time.perf_counter()
                freed_bytes = self._held_bytes - self._calls.held_bytes()
                self._calls.add(COLLECT, file, line, now_s - self._began_s, freed_bytes)
        except Exception as error:  # the collector would print it each time
            if not self._calls.fence.keeps("counting gc.collect", error):
                raise

    def _is_automatic(self, generation: int) -> bool:
        if not gc.isenabled():
            return False
        if _COUNTERS_TELL:
            if gc.get_count()[generation] <= gc.get_threshold()[generation]:
                return False
            if generation == 0:
                return True
        return not self._is_asked_for(sys._getframe(2))

    def _is_asked_for(self, frame: FrameType) -> bool:
        """Whether the frame is at a call of something named collect; looked up once per location."""
        key = (frame.f_code, frame.f_lasti)
        asked = self._asked.get(key)
        if asked is None:
            if len(self._asked) >= _MAX_SITES:
                self._asked.clear()
            asked = self._asked[key] = calls_collect(*key)
        return asked


class _Counting:
    """The function behind one of our `empty_cache` wrappers, and where its calls are counted while they are."""

    def __init__(self, function: Callable[..., object], what: str, calls: _Calls) -> None:
        self.function = function
        self.what = what
        self.calls: _Calls | None = calls

    def begins(self, frame: FrameType) -> tuple[_Calls, str, int, int, float] | None:
        """A call begins, from this frame; None when it is not counted."""
        calls = self.calls
        if calls is None or calls.inside:
            return None
        calls.inside = True
        file, line = frame.f_code.co_filename, frame.f_lineno
        return calls, file, line, calls.fence.call(self.what, gauge_now, "reserved_bytes") or 0, time.perf_counter()

    def ends(self, calls: _Calls, file: str, line: int, before: int, began_s: float) -> None:
        """It is over."""
        calls.inside = False
        took_s = time.perf_counter() - began_s
        calls.add(self.what, file, line, took_s, before - (gauge_now("reserved_bytes") or 0))


def _counted(function: Callable[P, R], what: str, calls: _Calls) -> Callable[P, R]:
    """The function, counted; itself a function of the same name, so that it can be pickled and inspected."""
    counting, fence = _Counting(function, what, calls), calls.fence

    @functools.wraps(function)
    def empty_cache(*arguments: P.args, **keywords: P.kwargs) -> R:
        begun = fence.call(what, counting.begins, sys._getframe(1))
        try:
            return function(*arguments, **keywords)
        finally:
            if begun is not None:
                fence.call(what, counting.ends, *begun)

    setattr(empty_cache, _COUNTING, counting)
    return empty_cache


def _uncounted(function: Callable[..., object]) -> Callable[..., object]:
    """The function behind wrappers of ours that no longer count."""
    counting = getattr(function, _COUNTING, None)
    while counting is not None and counting.calls is None:
        function = counting.function
        counting = getattr(function, _COUNTING, None)
    return function


def calls_collect(code: CodeType, at: int) -> bool:
    """Whether the instruction at this offset calls something whose name is collect.

    >>> code = compile("import gc; gc.collect()", "example.py", "exec")
    >>> calls = [step.offset for step in dis.get_instructions(code) if step.opname == "CALL"]
    >>> calls_collect(code, calls[0]), calls_collect(code, 0)
    (True, False)
    """
    line = None
    names: list[tuple[int | None, object]] = []
    for step in dis.get_instructions(code):
        if step.offset > at:
            break
        line = step.positions.lineno if step.positions is not None else None
        names.append((line, step.argval))
        called = step.opname.startswith("CALL")
    return bool(names) and called and any(of_line == line and name == "collect" for of_line, name in names)


def file_and_origin(file: str) -> tuple[str, str]:
    """A file in short form, and its origin: "us", "library" or "user".

    >>> file_and_origin("/env/lib/python3.11/site-packages/transformers/trainer.py")
    ('transformers/trainer.py', 'library')
    >>> file_and_origin("<stdin>"), file_and_origin(__file__)
    (('<stdin>', 'user'), ('forgather_mem/probes/cleanup_calls.py', 'us'))
    """
    if file.startswith(_US):
        return "forgather_mem/" + file[len(_US) :].replace(os.sep, "/"), "us"
    for folder in _PACKAGES:
        if folder in file:
            return file.rpartition(folder)[2].replace(os.sep, "/"), "library"
    for folder in _LIBRARIES:
        if file.startswith(folder):
            return file[len(folder) :].replace(os.sep, "/"), "library"
    if file.startswith("<frozen "):
        return file, "library"
    here = os.getcwd() + os.sep
    return (file[len(here) :] if file.startswith(here) else file), "user"
