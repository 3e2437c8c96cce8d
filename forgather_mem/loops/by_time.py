"""Watches a process that trains without torch: nobody tells of its steps, so each tenth of a second counts as one.

A thread sleeps and asks; the main thread looks, between two instructions of the script, as it would run a signal's
handler. So nothing changes while it looks, the script's frames are below it, and no signal is used up. The thread
imports this, so that an import waits for one of the script's that has begun.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from forgather_mem.loops.events import LoopEvents
from forgather_mem.system.process_end import PROCESS_END, last_error
from forgather_mem.system.time_budget import PREPARATION
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.guard import FailureGuard

if TYPE_CHECKING:
    from transformers import TrainerCallback


class Looks:
    """Looks at this process from time to time until it ends or imports torch.

    A forked child has no such thread.

    Args:
        args: What callbacks get as `args`.
        make_callbacks: Makes them, at the first look.
    """

    EVERY_S = 0.1  # a reading takes under a millisecond, and 64 are enough for a judgement

    def __init__(self, args: object, make_callbacks: Callable[[], Sequence[TrainerCallback]]) -> None:
        self._args, self._make_callbacks = args, make_callbacks
        self._fence = FailureGuard()
        self._events: LoopEvents | None = None
        self._began_s = time.monotonic()
        self._is_asked = self._is_over = False

    def ask(self) -> None:
        """In the thread: ask the main thread for looks."""
        python = ctypes.pythonapi
        # The truth of an object may be an error, which goes on in the script: a Ctrl-C that comes while we look
        look = ctypes.cast(python.PyObject_IsTrue, ctypes.c_void_p)
        python.Py_AddPendingCall.argtypes = ctypes.c_void_p, ctypes.py_object
        while not self._is_over:
            self._is_asked = self._is_asked or python.Py_AddPendingCall(look, self) == 0
            time.sleep(self.EVERY_S)

    def __bool__(self) -> bool:
        """In the main thread: look."""
        # CPython 3.11 comes to no end when it traces in a call that was put off while another such call waits
        if not self._is_over and sys.gettrace() is None is sys.getprofile():
            asked_s = time.monotonic()
            self._fence.call("a process without torch", self._look)
            self._began_s += time.monotonic() - asked_s  # the script stood: these would be steps in which nothing grows
        self._is_asked = False  # last, so that none of ours waits meanwhile
        return False

    def _look(self) -> None:
        torch = sys.modules.get("torch")
        if getattr(getattr(torch, "__spec__", None), "_initializing", False):
            return
        if torch is not None:  # its trainings tell of their steps; what came before them is told if it leaks
            self._close()
            run = self._events and self._events.run()
            if run and run.folder is not None and run.told.leak.verdict != "leak":
                run_session.note(run_session.NOT_TOLD, os.path.abspath(run.folder))
        elif self._events is None:
            self._is_over = self._fence.call("a process without torch", self._begin) is None  # else tried at each look
        else:
            self._events.state.global_step = int((time.monotonic() - self._began_s) / self.EVERY_S)
            self._events.fire("step_end")

    def _begin(self) -> bool:
        with PREPARATION:
            events = self._events = LoopEvents(self._args, self._make_callbacks())
            events.fire("init_end")
        events.fire("train_begin")
        if (run := events.run()) is not None:
            run.facts.header = replace(run.facts.header, is_observed=True, tick_s=self.EVERY_S)
        PROCESS_END.ask(self._close)
        return True

    def _close(self) -> None:
        self._is_over = True
        PROCESS_END.withdraw(self._close)
        if self._events is not None:
            if (error := last_error()) is None:
                self._events.fire("train_end")
            self._events.close(error)
