"""The stack of open phases. Phases nest; an outer evaluation keeps its name over inner forward passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from forgather_mem.system.own_time import SHORT_S, OwnTime
from forgather_mem.telemetry.events import OPAQUE_PHASES, STEP_PHASES
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.protocols import PhaseWatcher, SeesBatch


class PhaseStack:
    """The open phases, innermost last, and their watchers.

    Attributes:
        failed: The phase that an exception has left last, until another phase begins.
        in_step: Whether a step was begun that has not ended; None where nobody tells of a step's phases.
        on_batch: Called with the arguments and keywords of what trains on a micro-batch, before it begins.
        on_failure: Called with the error that ends the run, while its frames are alive; nothing of it is kept.
        own: Takes the seconds that the watchers take.

    >>> phases = PhaseStack()
    >>> phases.enter("evaluate"), phases.enter("forward"), phases.current
    (True, False, 'evaluate')
    """

    __slots__ = (
        "_fence", "_stack", "_told", "_watchers", "failed", "in_step", "on_batch", "on_failure", "own",
    )  # fmt: skip

    def __init__(self, fence: FailureGuard | None = None) -> None:
        self.failed: str | None = None
        self.in_step: bool | None = None
        self.own = OwnTime()
        self.on_batch: list[SeesBatch] = []
        self.on_failure: list[Callable[[BaseException], object]] = []
        self._fence = fence or FailureGuard()
        self._stack: list[str] = []
        self._told: list[list[_Watching]] = []  # for each open phase, the watchers to notify of its end
        self._watchers: list[_Watching] = []

    @property
    def current(self) -> str:
        return self._stack[-1] if self._stack else "other"

    def watch(self, watcher: PhaseWatcher) -> None:
        """From now on call `watcher` at every change; open phases begin for it now."""
        watching = _Watching(watcher)
        self._watchers.append(watching)
        for phase, told in zip(self._stack, self._told, strict=True):
            told += self._begin((watching,), phase)

    def enter(self, phase: str) -> bool:
        """Begin a phase. False if it belongs to an outer one and is not counted; then don't leave it."""
        self.failed = None
        if self._stack:
            if self._stack[-1] in OPAQUE_PHASES:
                return False
            if self._stack[-1] == "startup":
                self.leave("startup")
        if phase in STEP_PHASES:
            self.in_step = True
        told: list[_Watching] = []
        self._stack.append(phase)
        self._told.append(told)
        if self._watchers:
            began_s = time.perf_counter()
            told += self._begin(self._watchers, phase)
            self._spent(time.perf_counter() - began_s)
        return True

    def leave(self, phase: str) -> None:
        """End a phase, and whatever was left open inside it."""
        if phase not in self._stack:
            return
        last = None
        while last != phase:
            last, told = self._stack.pop(), self._told.pop()
            if told:
                began_s = time.perf_counter()
                for watching in told:
                    try:
                        watching.watcher.phase_end(last)
                        watching.strikes = 0
                    except Exception as error:
                        if not self._fence.strike(watching, error):
                            raise
                self._spent(time.perf_counter() - began_s)

    def _spent(self, took_s: float) -> None:
        short_s = min(took_s, SHORT_S)
        self.own.spent_s += short_s
        self.own.long_s += took_s - short_s

    def _begin(self, watchers: Sequence[_Watching], phase: str) -> list[_Watching]:
        """Tell these that a phase begins; those who are to hear of its end."""
        told = []
        rare = phase not in STEP_PHASES
        for watching in watchers:
            watcher = watching.watcher
            try:
                if not watching.off and (rare or getattr(watcher, "wants_begin", True)):
                    watcher.phase_begin(phase)
                    if rare or getattr(watcher, "wants_end", True):
                        told.append(watching)
            except Exception as error:
                if not self._fence.strike(watching, error):
                    raise
        return told

    def fail(self) -> None:
        """An exception leaves the innermost phase; the first report is right, outer phases follow."""
        if self.failed is None:
            self.failed = self.current

    def close(self) -> None:
        """End all phases and forget the watchers and listeners."""
        while self._stack:
            self.leave(self._stack[-1])
        self.forget()

    def forget(self) -> None:
        """Forget watchers and listeners; those of open phases don't hear of their ends."""
        for told in self._told:
            told.clear()
        self._watchers.clear()
        self.on_batch.clear()
        self.on_failure.clear()


class _Watching:
    """A watcher, with its failures in a row."""

    __slots__ = ("name", "off", "strikes", "watcher")

    def __init__(self, watcher: PhaseWatcher) -> None:
        self.watcher = watcher
        self.name = f"{type(watcher).__name__}'s phases"
        self.strikes = 0
        self.off = False
