"""How a run ends: steps that are all done in their order, whoever presses Ctrl-C meanwhile."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forgather_mem.engine.facts import finish_facts
from forgather_mem.engine.summary import RunSummary
from forgather_mem.errors import is_of_handler
from forgather_mem.system.allocator import ASK
from forgather_mem.system.process_end import PROCESS_END
from forgather_mem.system.time_budget import Clocks, backed_off
from forgather_mem.telemetry.records import Finding

if TYPE_CHECKING:
    from forgather_mem.engine.run import Run

Step = Callable[[], object]
ClosingFinding = Callable[[RunSummary], tuple[str, dict[str, Any]]]  # text and data of the finding that closes a run


def steps_of(run: Run, since: Clocks) -> list[Step]:
    """What is done at the end of this run, which closes since then; more steps follow from it."""
    fenced = functools.partial(functools.partial, run.fence.call)
    return [
        fenced("what was read less often", _tell_backed_off, run),
        fenced("the last record", run.recorder.flush),
        fenced("phases", run.phases.close),
        *run.works.ends(run),
        *(fenced(str(getattr(call, "__qualname__", "at_close")), call) for call in run.at_close_calls),
        functools.partial(_judge, run, since),
    ]


def interrupted(run: Run) -> None:
    """A training whose closing is interrupted has not finished."""
    if run.end is not None and run.end[0] == "finished":
        run.end = "interrupted", run.end[1]


def tell_ledger(run: Run) -> None:
    """What actions have done so far goes into the summary."""
    run.summary.told = replace(run.summary.told, ledger=tuple(run.ledger.rows()))


def _tell_backed_off(run: Run) -> None:
    for rule in {id(rule): rule for rule in run.paced if rule.longest_stretch > 1}.values():
        run.emit(backed_off(run, *rule.told_rarely()))


def _judge(run: Run, since: Clocks) -> None:
    """What came of it all; then the sinks hear of it, and end."""
    assert run.end is not None
    run.fence.call("what is known of the run", _conclude, run, since, *run.end)
    found = run.fence.call("verdict", run.verdict, run.summary)
    steps: list[Step] = []
    if found:
        finding = Finding(kind="verdict", step=run.step, text=found[0], data=found[1])
        run.fence.call("summary", run.summary.tell, finding)
        steps += run.sinks.calls("tell", finding)
    run.closing.add(*steps, *run.sinks.calls("end", run), functools.partial(_is_over, run))


def _is_over(run: Run) -> None:
    for kept in (run.members, run.works, run.at_close_calls):
        kept.clear()
    run.closed = True
    PROCESS_END.withdraw(run.process_ends)


def _conclude(run: Run, since: Clocks, end: str, exit_code: int | None) -> None:
    """What is known of the run when it is over goes into its summary."""
    fence, summary, recorder = run.fence, run.summary, run.recorder
    run.reach(run.step)  # not every step has a record
    fence.call("header", lambda: run.header)
    recorder.own.add(since)
    fence.call("own time", recorder.take_self_s)
    recorder.own.close()
    fence.call("ledger", run.ledger.close)
    fence.call("ledger", tell_ledger, run)
    wall_s = time.perf_counter() - recorder.began_at
    fence.call("facts", finish_facts, run.facts, end, exit_code, wall_s, run.device)
    run.sinks.collect_problems(summary)
    summary.switched_off = list(dict.fromkeys(summary.switched_off + fence.switched_off + ASK.failure))


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
