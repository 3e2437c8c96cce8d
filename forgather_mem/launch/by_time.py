"""Watches a process that trains without torch: nobody tells of its steps, so each tenth of a second counts as one.

A thread sleeps and asks; the main thread looks, between two instructions of the script, as it would run a signal's
handler. So nothing changes while it looks, the script's frames are below it, and no signal is used up.
"""

from __future__ import annotations

import _thread
import sys
import time

from forgather_mem.launch.short_runs import SHORT_S
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.guard import FailureGuard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from forgather_mem.engine.run import Run
    from forgather_mem.loops.events import LoopEvents

EVERY_S = 0.1  # a reading takes under a millisecond, and 64 are enough for a judgement


def watch_by_time() -> None:
    """Watch this process unless it imports torch soon; of a command only the first that could, not its workers."""
    folder = run_session.folder()
    if "torch" in sys.modules or folder is None or run_session.noted(folder, run_session.BY_TIME):
        return
    run_session.note(run_session.BY_TIME)
    _thread.start_new_thread(_Timed().ask_for_readings, ())


class _Timed:
    """What is looked at by time, until the process ends or imports torch."""

    def __init__(self) -> None:
        self._fence = FailureGuard()
        self._events: LoopEvents | None = None
        self._began_s = 0.0
        self._is_asked = self._is_over = False

    def ask_for_readings(self) -> None:
        """In the thread."""
        time.sleep(SHORT_S)
        if "torch" not in sys.modules:
            self._fence.call("a process without torch", self._ask)

    def _ask(self) -> None:
        # Here, where an import waits for one of the script's that has begun
        import ctypes

        import forgather_mem.launch.watching
        import forgather_mem.loops.events  # noqa: F401

        python = ctypes.pythonapi
        # The truth of an object may be an error, which goes on in the script: a Ctrl-C that comes while we look
        look = ctypes.cast(python.PyObject_IsTrue, ctypes.c_void_p)
        python.Py_AddPendingCall.argtypes = ctypes.c_void_p, ctypes.py_object
        while not self._is_over:
            self._is_asked = self._is_asked or python.Py_AddPendingCall(look, self) == 0
            time.sleep(EVERY_S)

    def __bool__(self) -> bool:
        """In the main thread: look."""
        if not self._is_over and sys.gettrace() is None is sys.getprofile():  # else another call put off would hang it
            self._fence.call("a process without torch", self._look)
        self._is_asked = False  # last, so that none is put off meanwhile
        return False

    def _look(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None:
            if not getattr(torch.__spec__, "_initializing", False):
                self._close()  # its trainings tell of their steps
            return
        if self._events is None:
            self._is_over = self._fence.call("a process without torch", self._begin) is None  # else at each look again
        else:
            self._events.state.global_step = int((time.monotonic() - self._began_s) / EVERY_S)
            self._events.fire("step_end")

    def _begin(self) -> Run | None:
        from dataclasses import replace

        from forgather_mem.launch.watching import callbacks_of_run, output_folder
        from forgather_mem.loops.events import LoopEvents
        from forgather_mem.loops.state import default_arguments
        from forgather_mem.system.process_end import PROCESS_END
        from forgather_mem.system.time_budget import PREPARATION

        with PREPARATION:
            arguments = default_arguments()
            arguments.output_dir = output_folder()
            events = self._events = LoopEvents(arguments, callbacks_of_run())
            events.fire("init_end")
        self._began_s = time.monotonic()
        events.fire("train_begin")
        if (run := events.run()) is not None:
            run.facts.header = replace(run.facts.header, is_observed=True, tick_s=EVERY_S)
            PROCESS_END.ask(self._process_ends, self._forget)
        return run

    def _process_ends(self) -> None:
        from forgather_mem.system.process_end import last_error

        self._close(last_error())

    def _close(self, error: BaseException | None = None) -> None:
        from forgather_mem.system.process_end import PROCESS_END

        self._is_over = True
        PROCESS_END.withdraw(self._process_ends)
        events, self._events = self._events, None
        if events is not None:
            if error is None:
                events.fire("train_end")
            events.close(error)

    def _forget(self) -> None:
        """This is a forked child: the run is the parent's."""
        self._is_over, self._events = True, None
