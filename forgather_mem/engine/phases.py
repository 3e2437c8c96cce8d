"""The stack of open phases. Phases nest; an outer evaluation keeps its name over inner forward passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from forgather_mem.system.time_budget import OwnTime
from forgather_mem.telemetry.events import OPAQUE_PHASES, PHASE_NUMBER, STEP_PHASES
from forgather_mem.telemetry.guard import FailureGuard, Guarded
from forgather_mem.telemetry.records import PhaseWatcher, SeesBatch

_clock = time.perf_counter  # looked up once: a step has four phases


class PhaseStack:
    """The open phases, innermost last, and their watchers.

    Attributes:
        failed: The phase that an exception has left last, until another phase begins.
        in_step: Whether a step was begun that has not ended; None where nobody tells of a step's phases.
        on_batch: Called with the arguments and keywords of what trains on a micro-batch, before it begins.
        on_output: Called with what a forward pass has returned, after it; None as soon as nobody wants that.
        on_failure: Called with the error that ends the run, while its frames are alive; nothing of it is kept.
        own: Takes the seconds that the watchers take.

    >>> phases = PhaseStack()
    >>> phases.enter("evaluate"), phases.enter("forward"), phases.current
    (True, False, 'evaluate')
    """

    def __init__(self, fence: FailureGuard | None = None) -> None:
        self.failed: str | None = None
        self.in_step: bool | None = None
        self.own = OwnTime()
        self.on_batch: list[SeesBatch] = []
        self.on_output: Callable[[object], object] | None = None
        self.on_failure: list[Callable[[BaseException], object]] = []
        self._fence = fence or FailureGuard()
        self._beside: Any = SimpleNamespace()  # takes the number of each phase; see `PhaseWatcher`
        self._step_ended: Callable[[int], object] = bool
        self._stack: list[str] = []
        self._told: list[list[_Watching]] = []  # for each open phase, the watchers to notify of its end
        self._watchers: list[_Watching] = []
        self._is_unheard = True  # whether no watcher wants the phases of a step

    @property
    def current(self) -> str:
        return self._stack[-1] if self._stack else "other"

    def watch(self, watcher: PhaseWatcher) -> None:
        """From now on call `watcher` at every change; open phases begin for it now."""
        watching = _Watching(watcher)
        self._watchers.append(watching)
        self._beside = getattr(watcher, "beside", None) or self._beside
        self._step_ended = getattr(watcher, "step_ended", None) or self._step_ended
        self.look_again()
        for phase, told in zip(self._stack, self._told, strict=True):
            self._begin((watching,), phase, told)

    def look_again(self) -> None:
        """Watchers may have changed what they want."""
        self._is_unheard = not any(map(_wants_steps, self._watchers))

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
            self._beside.phase = PHASE_NUMBER[phase]
        told: list[_Watching] = []
        self._stack.append(phase)
        self._told.append(told)
        if self._watchers:
            began_s = _clock()
            self._begin(self._watchers, phase, told)
            self.own.add_short(_clock() - began_s)
        return True

    def turn(self, phase: str, ended: Sequence[str]) -> None:
        """Begin a phase of a step; whichever of these is open is over."""
        stack = self._stack
        if self._is_unheard and stack and stack[-1] in ended and phase in STEP_PHASES and not self._told[-1]:
            stack[-1], self.failed, self.in_step = phase, None, True
            self._beside.phase = PHASE_NUMBER[phase]
            return
        for one in ended:
            self.leave(one)
        self.enter(phase)

    def see_batch(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> None:
        """What trains on a micro-batch is called with these."""
        if self.on_batch:
            began_s = _clock()
            for see in self.on_batch:
                self._fence.call("batch", see, arguments, keywords)
            self.own.add_short(_clock() - began_s)

    def leave(self, phase: str) -> None:
        """End a phase, and whatever was left open inside it."""
        if phase not in self._stack:
            return
        last = None
        while last != phase:
            last, told = self._stack.pop(), self._told.pop()
            if told:
                began_s = _clock()
                for watching in told:
                    try:
                        watching.end(last)
                        watching.strikes = 0
                    except self._fence.struck(watching):
                        continue
                self.look_again()
                self.own.add_short(_clock() - began_s)

    def _begin(self, watchers: Sequence[_Watching], phase: str, told: list[_Watching]) -> None:
        """Tell these that a phase begins; `told` gets those who are to hear of its end."""
        rare = phase not in STEP_PHASES
        for watching in watchers:
            try:
                if _wants_steps(watching) or (rare and not watching.off):
                    watching.begin(phase)
                    if rare or getattr(watching.watcher, "wants_end", True):
                        told.append(watching)
            except self._fence.struck(watching):
                continue

    def no_step(self) -> None:
        """The phase that was entered last, of a step, has begun none."""
        self.in_step = False
        self._beside.phase = 0

    def step_ended(self, step: int) -> None:
        """So many steps are done."""
        self.in_step = False if self.in_step else self.in_step
        self._step_ended(step)

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
        self._beside, self._step_ended, self.on_output = SimpleNamespace(), bool, None
        self.on_batch.clear()
        self.on_failure.clear()


class _Watching(Guarded):
    """A watcher, with its members read once where that is possible, and its failures in a row."""

    def __init__(self, watcher: PhaseWatcher) -> None:
        super().__init__(f"{type(watcher).__name__}'s phases")
        self.watcher = watcher
        self.begin, self.end = watcher.phase_begin, watcher.phase_end


def _wants_steps(watching: _Watching) -> bool:
    """Whether this watcher hears when a phase of a step begins now."""
    return not watching.off and getattr(watching.watcher, "wants_begin", True)
