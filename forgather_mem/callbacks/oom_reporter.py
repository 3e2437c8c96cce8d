"""Which callback says what ran out of memory, where, why just then, and what would have fitted?"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import weakref
from collections.abc import Mapping
from typing import Any

from forgather_mem import session
from forgather_mem.callbacks.link import Link
from forgather_mem.callbacks.rule_callback import RuleCallback
from forgather_mem.diagnose.failing import close_failed
from forgather_mem.diagnose.oom import recognise
from forgather_mem.diagnose.oom_watch import OutOfMemoryWatch
from forgather_mem.diagnose.snapshot import Snapshot
from forgather_mem.engine import Run
from forgather_mem.errors import check_flags
from forgather_mem.plan import Rule
from forgather_mem.report_text import report_text
from forgather_mem.sample import Finding, RunInfo, Sample
from forgather_mem.triggers import AtEvent, Every

# All of ours may take so much; above it only those steps are looked at whose batch is read.
_BUDGET_FRAC = 0.005


class OOMReporter(RuleCallback):
    """Explains an out-of-memory error, of the host or of a device; changes nothing, and the error stays the user's.

    It notes the shapes of batches and what is in use at the ends of phases. When memory runs out the report says
    in which step, phase and layer, what was wanted and what was free, who held the rest, why just then, and which
    change would have fitted. The text is printed when the script has ended, below its traceback; in a notebook at
    once; under `forgather-mem run` by that.

    Without a link to the trainer (another library's loop) it speaks only when the error ends the script.

    Args:
        snapshot: Record the device's allocations from the beginning of the training, and write them for PyTorch's
            viewer when memory runs out: at most 100 000 entries, 200 MB and 20 s.
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
        self.snapshot = snapshot
        self._watch = OutOfMemoryWatch(Snapshot() if snapshot else None)
        rules = [
            Rule(when=Every(steps=1), do=[self._watch], name="OOMReporter", budget_frac=_BUDGET_FRAC),
            Rule(when=AtEvent("train_begin", "prediction_step"), do=[self._watch], name="OOMReporter"),
        ]
        super().__init__(rules, [LastWords()], enabled=enabled, strict=strict)

    def _linked(self, link: Link, run: Run) -> None:
        super()._linked(link, run)
        self._watch.trainer = link.trainer


class LastWords:
    """Prints the report of a training that ran out of memory, when its error has ended the script.

    That is after Python has printed the traceback. An error that the script catches is its own business.
    """

    key = ("last words",)

    def __init__(self) -> None:
        self._report: Mapping[str, Any] | None = None
        self._run: weakref.ref[Run] | None = None

    def begin(self, run: RunInfo) -> None:
        """A training begins; what an earlier one has ended with is over."""
        self._report = None
        self._run = weakref.ref(run) if isinstance(run, Run) else None
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)  # after the run's own, hence called before it

    def write(self, sample: Sample) -> None:
        """Records are not printed."""

    def tell(self, finding: Finding) -> None:
        """Of the verdict that closes a run, keep the report when memory ran out."""
        report = finding.data.get("report") if finding.kind == "verdict" else None
        session_folder = os.environ.get(session.FOLDER)
        if not report or report["oom"] is None or (session_folder and session.registered(session_folder)):
            return
        if _is_interactive() and not session_folder:
            _print(report_text(report))
        else:
            self._report = report

    def end(self, run: RunInfo) -> None:
        """The training is over."""
        self._run = None
        if self._report is None:
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)  # of what Python has printed a traceback
        run = self._run() if self._run is not None else None
        if error is not None and recognise(error) is not None:
            if run is not None:  # nobody has told of the error while it passed
                close_failed(run, error)
            if self._report is not None and session.FOLDER in os.environ:
                _hand_over(self._report, os.environ[session.FOLDER])
            elif self._report is not None:
                _print(report_text(self._report))

    def __getstate__(self) -> dict[str, object]:
        return {"_report": None, "_run": None}


def _hand_over(report: Mapping[str, Any], folder: str) -> None:
    """To the waiting parent, which prints it: this training has no folder of its own that it could look into."""
    told = {"oom": report["oom"], "advice": report["advice"], "pid": os.getpid()}
    path = os.path.join(folder, session.LAST_ERROR.format(rank=report["oom"]["rank"]))
    with contextlib.suppress(OSError), open(path, "w") as file:
        json.dump(told, file)


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _is_interactive() -> bool:
    """Whether somebody types: nothing ends there when an error does."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)
