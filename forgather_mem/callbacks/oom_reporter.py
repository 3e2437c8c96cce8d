"""`OOMReporter`: explains what ran out of memory, where, why at that moment, and what would have fitted."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.diagnose.oom.watch import OutOfMemoryWatch
from forgather_mem.errors import check_flags, missing, say
from forgather_mem.files import replace_file
from forgather_mem.system.process_end import PROCESS_END
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.records import NOTHING, Finding, RunInfo, Sample, Work
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import AtEvent, Every

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import RunReport

# Budget of all our readings; above it, only steps whose batch is read are examined.
_BUDGET_FRAC = 0.005


class OOMReporter(RuleCallback):
    """Explains an out-of-memory error of the host or a device; changes nothing, and the error stays the user's.

    It records the shapes of batches and the memory in use at the ends of phases. When memory runs out, the report gives
    the step, phase and layer, what was requested and what was free, who held the rest, why at that moment, and which
    change would have fitted. It is printed when the script has ended, below its traceback; in a notebook immediately;
    under `forgather-mem run` by that command.

    Without a link to the trainer (another library's loop) it reports only if the error ends the script.

    Args:
        snapshot: Record the device's allocations from the start of the training, and write them for PyTorch's viewer
            when memory runs out: at most 100 000 entries, 200 MB and 20 s.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    >>> OOMReporter(snapshot="yes")
    Traceback (most recent call last):
    ...
    ValueError: OOMReporter(snapshot='yes'): snapshot is true or false

    Raises:
        ValueError: for a switch that is neither true nor false.
    """

    needs_phases = True

    def __init__(self, snapshot: bool = False, *, enabled: bool = True, strict: bool = False) -> None:
        check_flags(type(self).__name__, snapshot=snapshot)
        watch, late = EachRun(OutOfMemoryWatch, snapshot), EachRun(_planned_ahead)
        watch.reading = (OutOfMemoryWatch, snapshot)  # two equal ones in a training are read once
        late.reading = ("late failures",)
        rules = [
            Rule(when=Every(steps=1), do=[watch, late], name="OOMReporter", budget_frac=_BUDGET_FRAC),
            Rule(when=AtEvent("train_begin", "prediction_step"), do=[watch], name="OOMReporter"),
            Rule(when=AtEvent("evaluate", "predict"), do=[late], name="OOMReporter"),
        ]
        super().__init__(rules, [LastWords()], enabled=enabled, strict=strict)


def _planned_ahead(run: RunInfo) -> Work:
    """What plans a Trainer's training; no other is planned."""
    if run.trainer() is None:
        return lambda moment, sample: NOTHING
    from forgather_mem.diagnose.alerts.planned import PlannedAhead

    return PlannedAhead(run)


class LastWords:
    """Prints the report of a training that ran out of memory, after its error has ended the script.

    By then Python has printed the traceback. An error that the script catches is not reported.
    """

    key = ("last words",)

    def __init__(self) -> None:
        self._report: RunReport | None = None
        self._run: RunInfo | None = None

    def begin(self, run: RunInfo) -> None:
        """A training begins; an earlier one's failure no longer matters."""
        self._report = None
        self._run = run
        PROCESS_END.ask(self._at_exit)  # after the run has asked, hence called before it

    def write(self, sample: Sample) -> None:
        """Records are not printed."""

    def tell(self, finding: Finding) -> None:
        """Keep the report of the finding that closes a run, if memory ran out."""
        data = finding.data.get("report") if finding.kind == "verdict" else None
        session_folder = run_session.folder()
        if not data or data["oom"] is None or (session_folder and run_session.registered(session_folder)):
            return
        from forgather_mem.telemetry.report import RunReport
        from forgather_mem.telemetry.report_schema import from_dict

        report = from_dict(RunReport, data)
        # In an interactive session an error does not end it
        ipython = sys.modules.get("IPython")
        if (hasattr(sys, "ps1") or (ipython and ipython.get_ipython())) and not session_folder:
            _print(report)
        else:
            self._report = report

    def end(self, run: RunInfo) -> None:
        """The training is over."""
        self._run = None
        if self._report is None:
            PROCESS_END.withdraw(self._at_exit)

    def _at_exit(self) -> None:
        from forgather_mem.diagnose.oom.recognition import close_failed, recognise

        error = getattr(sys, "last_value", None)  # the error whose traceback Python has printed
        if error is not None and recognise(error) is not None:
            if self._run is not None:  # nothing reported the error when it was raised
                close_failed(self._run, error)
            session_folder = run_session.folder()
            if self._report is not None and session_folder is not None:
                _hand_over(self._report, session_folder)
            elif self._report is not None:
                _print(self._report)

    def __getstate__(self) -> dict[str, object]:
        return {"_report": None, "_run": None}


def _hand_over(report: RunReport, folder: str) -> None:
    """Pass the report to the waiting parent, which prints it: this training has no folder that it could read."""
    from forgather_mem.telemetry.report import LastError
    from forgather_mem.telemetry.report_schema import to_dict

    assert report.oom is not None
    told = LastError(oom=report.oom, advice=report.advice, pid=os.getpid())
    path = os.path.join(folder, run_session.LAST_ERROR.format(rank=report.oom.rank))
    with missing(OSError):
        replace_file(path, json.dumps(to_dict(told)).encode(), through_links=False)


def _print(report: RunReport) -> None:
    from forgather_mem.reporting.text import report_text

    say(report_text(report))
