"""What is still to be done when this process ends, in one handler of `atexit`, however many trainings there were.

A handler that is taken back leaves its slot in `atexit` for good. And a forked child inherits its parent's handlers,
and runs them when it ends by `sys.exit` or an error: what the parent has begun is the parent's to end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable


class _ProcessEnd:
    """Calls for the end of the process that has asked for them.

    >>> PROCESS_END.ask(print)
    >>> PROCESS_END.withdraw(print)
    """

    def __init__(self) -> None:
        self._calls: dict[Callable[[], object], Callable[[], object]] = {}
        self._registered = False
        os.register_at_fork(after_in_child=self._forget)

    def ask(self, call: Callable[[], object], in_child: Callable[[], object] = bool) -> None:
        """Call this when the process ends, before what was asked for earlier; in a forked child `in_child`, at once."""
        self.withdraw(call)
        self._calls[call] = in_child
        if not self._registered:
            self._registered = True
            atexit.register(self._run)
            # Its forked processes end without `atexit` before Python 3.13
            util = sys.modules.get("multiprocessing.util")
            if util is not None and sys.modules["multiprocessing.process"].parent_process() is not None:
                util.Finalize(None, self._run, exitpriority=-100)  # after it has waited for children of its own

    def withdraw(self, call: Callable[[], object]) -> None:
        """It is no longer needed. Idempotent."""
        self._calls.pop(call, None)

    def _run(self) -> None:
        if self._calls:
            try:
                self._calls.popitem()[0]()
            finally:  # an error, or a Ctrl-C, of one is not the others'
                self._run()
        else:
            keep_ctrl_c()

    def _forget(self) -> None:
        calls, self._calls = self._calls, {}
        self._registered = False  # multiprocessing empties a child's atexit
        for in_child in calls.values():
            in_child()


def last_error() -> BaseException | None:
    """What has ended this process, printed by Python already; None where somebody types: there it is of any line."""
    return None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)


def keep_ctrl_c() -> None:
    """Let a Ctrl-C that has ended the script end the process, too, whatever has been imported since.

    Python remembers whether the last code that it compiled from text was left by one; a dataclass is such code. What it
    has forgotten shows in the exit code: 1 instead of the signal, after which a shell's loop goes on.
    """
    if isinstance(last_error(), KeyboardInterrupt):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


# One, because there is one process.
PROCESS_END = _ProcessEnd()
