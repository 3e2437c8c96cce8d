"""In which phase is the training now? Phases nest, and an outer evaluation keeps its name over inner forwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forgather_mem.sample import STEP_PHASES, PhaseWatcher

# What runs inside these is theirs: the forward pass of an evaluation is evaluation.
_OPAQUE = frozenset({"evaluate", "save", "resume", "generate"})


class PhaseStack:
    """The phases that are open, innermost last, and those who watch them.

    Attributes:
        failed: The phase that an exception has left last, until another phase begins.
        on_batch: Called with the arguments and keywords of what trains on a micro-batch, before it begins.
        on_failure: Called with the error that ends the run, while its frames are alive; nothing of it is kept.
        watched_s: Seconds that the watchers took so far.

    >>> phases = PhaseStack()
    >>> phases.enter("evaluate"), phases.enter("forward"), phases.current
    (True, False, 'evaluate')
    """

    __slots__ = ("_stack", "_told", "_watchers", "failed", "on_batch", "on_failure", "watched_s")

    def __init__(self) -> None:
        self.failed: str | None = None
        self.watched_s = 0.0
        self.on_batch: list[Callable[[Sequence[Any], Mapping[str, Any]], object]] = []
        self.on_failure: list[Callable[[BaseException], object]] = []
        self._stack: list[str] = []
        self._told: list[list[PhaseWatcher]] = []  # of each open phase those who are to hear of its end
        self._watchers: list[PhaseWatcher] = []

    @property
    def current(self) -> str:
        return self._stack[-1] if self._stack else "other"

    def watch(self, watcher: PhaseWatcher) -> None:
        """From now on `watcher` is called at every change; phases already open begin for it now."""
        self._watchers.append(watcher)
        for phase, told in zip(self._stack, self._told, strict=True):
            watcher.phase_begin(phase)
            told.append(watcher)

    def enter(self, phase: str) -> bool:
        """Begin a phase. False when it belongs to an outer one and is not counted; then don't leave it."""
        self.failed = None
        if self._stack:
            if self._stack[-1] in _OPAQUE:
                return False
            if self._stack[-1] == "startup":
                self.leave("startup")
        told: list[PhaseWatcher] = []
        self._stack.append(phase)
        self._told.append(told)
        if self._watchers:
            began_s = time.perf_counter()
            rare = phase not in STEP_PHASES
            for watcher in self._watchers:
                if rare or getattr(watcher, "listens", True):
                    watcher.phase_begin(phase)
                    if rare or getattr(watcher, "hears_ends", True):
                        told.append(watcher)
            self.watched_s += time.perf_counter() - began_s
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
                for watcher in told:
                    watcher.phase_end(last)
                self.watched_s += time.perf_counter() - began_s

    def fail(self) -> None:
        """An exception leaves the innermost phase; the first to say so is right, outer phases follow."""
        if self.failed is None:
            self.failed = self.current

    def close(self) -> None:
        """End all phases and forget the watchers and listeners."""
        while self._stack:
            self.leave(self._stack[-1])
        self._watchers.clear()
        self.on_batch.clear()
        self.on_failure.clear()
