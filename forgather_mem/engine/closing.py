"""Steps that are all done in their order, whoever presses Ctrl-C meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from forgather_mem.errors import is_of_handler

Step = Callable[[], object]


class Closing:
    """The steps in which something is closed. They may be done twice, so each must bear that.

    >>> closing = Closing()
    >>> closing.add(lambda: print("written"), lambda: print("given back"))
    >>> closing.carry_out(interrupted=print)
    written
    given back
    """

    def __init__(self) -> None:
        self._left: deque[Step] = deque()
        self._is_busy = False

    def add(self, *steps: Step) -> None:
        """These come last."""
        self._left.extend(steps)

    def forget(self) -> None:
        """Whatever is left is not done."""
        self._left.clear()

    def carry_out(self, interrupted: Step) -> None:
        """Do what is left. Nothing happens when a step of it asks for this.

        A Ctrl-C, or what another signal's handler raises, in a step calls `interrupted`, and the step gets one more
        try; after a second one it is left out. It is raised when all is done. What an interruption between two steps
        leaves undone, the next call does.
        """
        if self._is_busy:
            return
        self._is_busy = True
        raised: BaseException | None = None
        try:
            while self._left:
                step = self._left[0]
                error = _left_by(step)
                if self._left and error is not None and (not isinstance(error, Exception) or is_of_handler(error)):
                    interrupted()
                    error = _left_by(step) or error
                raised = error or raised
                if self._left:  # else forgotten: this is a child that the step has forked
                    self._left.popleft()
            if raised is not None:
                raise raised
        finally:
            self._is_busy = False
            error = raised = None  # else it and this frame held each other


def _left_by(step: Step) -> BaseException | None:
    """What has left the step: a Ctrl-C or a signal's exit, or a failure of our own where those end a training."""
    try:
        step()
    except BaseException as error:  # noqa: BLE001 (raised when the other steps are done)
        return error
    return None
