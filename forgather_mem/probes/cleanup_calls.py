"""Counts the calls of gc.collect() and empty_cache() in this process: from which line, how often, to what effect."""

from __future__ import annotations

import gc
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from forgather_mem.source.source_lines import OURS, is_user_file, short_file
from forgather_mem.system import call_wrapping
from forgather_mem.system.allocator import gauge_now, modules_with_a_cache
from forgather_mem.system.call_wrapping import around_calls
from forgather_mem.system.procfs import own_memory
from forgather_mem.telemetry import guard
from forgather_mem.telemetry.records import NOTHING, Finding, Moment, RunInfo, Sample, Work

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import CleanupCall

COLLECT = "gc.collect"
_COUNTING = "_forgather_mem_counting"
_BETWEEN = (__file__, call_wrapping.__file__, guard.__file__)  # the caller of a function and what counts its call


class CleanupProbe:
    """Counts all clean-up calls while a training runs: the script's, its libraries', our own.

    `gc.collect`, and `empty_cache` in the loaded modules of torch, are wrapped and restored at the end. This adds 25 us
    to a call, or more with a device. It returns no samples; the counts are reported as a finding: first when there are
    any, again whenever the number of calls has doubled, and at the end.

    Not seen: a call inside another, or from a thread during another thread's, and of a function that was imported from
    its module by name before the training.
    """

    reading = ("clean-up calls",)

    def begin(self, run: RunInfo) -> Work:
        return _Cleanups(run)


class _Cleanups:
    """The probe in one run."""

    def __init__(self, run: RunInfo) -> None:
        self._wrapped: list[tuple[ModuleType, str, Callable[..., object]]] = []
        self._tell_at = 1
        self._run = run
        self._calls = calls = _Calls()
        run.at_close(self._close)
        self._wrap(gc, "collect", COLLECT, calls.held_bytes)
        for name in modules_with_a_cache():
            if name in sys.modules:
                self._wrap(
                    sys.modules[name], "empty_cache", f"{name}.empty_cache", lambda: gauge_now("reserved_bytes") or 0
                )

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if self._calls.number >= self._tell_at:
            self._tell_at = 2 * self._calls.number
            self._emit_calls()
        return NOTHING

    def _emit_calls(self) -> None:
        from forgather_mem.telemetry.report_schema import to_dict

        data = {"calls": [to_dict(row) for row in self._calls.rows()]}
        self._run.emit(Finding(kind="cleanup_calls", step=self._run.step, text="clean-up calls", data=data))

    def _wrap(self, module: ModuleType, name: str, what: str, held_bytes: Callable[[], int]) -> None:
        function = vars(module).get(name)
        if not callable(function):
            return
        known = (counted for _, _, counted in self._wrapped if getattr(counted, _COUNTING).function is function)
        counted = next(known, None)
        if counted is None:
            counting = _Counting(function, what, self._calls, held_bytes)
            counted = around_calls(function, counting.around)
            setattr(counted, _COUNTING, counting)
        vars(module)[name] = counted
        self._wrapped.append((module, name, counted))

    def _close(self) -> None:
        for module, name, counted in self._wrapped:
            getattr(counted, _COUNTING).calls = None
            if vars(module).get(name) is counted:  # what others have replaced since is theirs
                vars(module)[name] = _uncounted(counted)
        self._wrapped = []
        if self._calls.sites:
            self._emit_calls()


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
        self.sites = defaultdict[tuple[str, str, int], _Site](_Site)

    def held_bytes(self) -> int:
        """Anonymous memory of the process plus live tensors on its device: what a collection can free."""
        return own_memory().anonymous_bytes + (gauge_now("allocated_bytes") or 0)

    def rows(self) -> list[CleanupCall]:
        """The rows of the report, most expensive first."""
        from forgather_mem.telemetry.report import CleanupCall

        rows = []
        for (what, file, line), site in self.sites.items():
            shown, whose = file_and_origin(file)
            rows.append(CleanupCall(what=what, file=shown, line=line, whose=whose, **asdict(site)))
        return sorted(rows, key=lambda row: -row.seconds)


@dataclass(eq=False, slots=True)
class _Counting:
    """The function behind one of our wrappers, and where its calls are counted while they are.

    Attributes:
        held_bytes: What such a call can give back.
    """

    function: Callable[..., object]
    what: str
    calls: _Calls | None
    held_bytes: Callable[[], int]

    def around(self) -> AbstractContextManager[object] | None:
        """What stands around a call; around one inside another nothing does."""
        return None if self.calls is None or self.calls.inside else _Call(self, self.calls)


class _Call(AbstractContextManager[None]):
    """One call that is counted."""

    def __init__(self, counting: _Counting, calls: _Calls) -> None:
        self._counting, self._calls = counting, calls

    def __enter__(self) -> None:
        frame = sys._getframe()
        while frame.f_code.co_filename in _BETWEEN and frame.f_back is not None:  # also a wrapper around this one
            frame = frame.f_back
        self._place = self._counting.what, frame.f_code.co_filename, frame.f_lineno
        self._before_bytes, self._began_s = self._counting.held_bytes(), time.perf_counter()
        self._calls.inside = True

    def __exit__(self, *_: object) -> None:
        self._calls.inside = False
        site = self._calls.sites[self._place]
        site.seconds += time.perf_counter() - self._began_s
        site.freed_bytes += max(0, self._before_bytes - self._counting.held_bytes())
        site.calls += 1
        self._calls.number += 1


def _uncounted(function: Callable[..., object]) -> Callable[..., object]:
    """The function behind wrappers of ours that no longer count."""
    while (counting := getattr(function, _COUNTING, None)) is not None and counting.calls is None:
        function = counting.function
    return function


def file_and_origin(file: str) -> tuple[str, str]:
    """A file in short form, and its origin: "us", "library" or "user".

    >>> file_and_origin("/env/lib/python3.11/site-packages/transformers/trainer.py")
    ('transformers/trainer.py', 'library')
    >>> file_and_origin("<stdin>"), file_and_origin(__file__)
    (('<stdin>', 'user'), ('forgather_mem/probes/cleanup_calls.py', 'us'))
    """
    of_user = is_user_file(file) or file == "<stdin>"
    return short_file(file), "us" if file.startswith(OURS) else "user" if of_user else "library"
