"""Puts what came of a training into the summary of its run in W&B, MLflow, Comet and trackio."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import Finding, JsonData, RunInfo, Sample
from forgather_mem.units import GIB, MIB

_Summary = Mapping[str, float | str]
_Put = Callable[[_Summary, Finding], object]
_Run = Any  # of some tracker


class TrackerSummarySink:
    """Writes a few numbers and words into the run of each tracker that the script has begun; it begins none itself.

    | key | what |
    |---|---|
    | `mem_run_end` | "finished", "oom", "exception", "interrupted" |
    | `mem_run_leak` | "no leak", "leak", "copied pages", "not enough data" |
    | `mem_run_leak_mib_per_step` | of a leak |
    | `mem_run_peak_gib`, `mem_run_peak_step`, `mem_run_peak_phase` | the peak of the device, or of the host |
    | `mem_run_advice` | the first change to make after memory ran out |
    | `mem_run_report` | the report as text |

    In W&B they are in the run's summary, in Comet under Other. In MLflow numbers are metrics and words are tags.
    trackio has no summary: there they are an alert with the report, of level INFO, WARN for a leak, or ERROR.

    A run that is over when the training ends, as the Trainer's callbacks for MLflow and trackio have it, gets them all
    the same. Only rank 0 writes. A tracker that fails is logged once, and the others get theirs.

    Args:
        prefix: Prefix of every key.
    """

    def __init__(self, prefix: str = "mem_run_") -> None:
        self.prefix = prefix
        self.key = "tracker summary", prefix  # equal for two sinks that would write the same
        self._forget()

    def begin(self, run: RunInfo) -> None:
        """A training begins; a tracker's run may have begun before it."""
        self._forget()
        self._writes = run.rank == 0
        self._look()

    def write(self, sample: Sample) -> None:
        """Records are the log lines' affair."""

    def log_values(self, step: int) -> dict[str, float]:
        """Nothing for the line; but whoever gets it has a run by now."""
        self._look()
        return {}

    def tell(self, finding: Finding) -> None:
        """The verdict closes a training."""
        if finding.kind != "verdict":
            return
        self._look()
        summary = {**summary_of(finding.data.get("report") or {}), "report": finding.text}
        named = {self.prefix + key: value for key, value in summary.items()}
        for tracker, put in self._found.items():
            self._guard.call(f"the summary in {tracker}", put, named, finding)

    def end(self, run: RunInfo) -> None:
        """The training is over: its trackers' runs are not held any longer."""
        self._forget()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.prefix,)

    def _forget(self) -> None:
        self._writes = False
        self._guard = FailureGuard()
        self._found: dict[str, _Put] = {}

    def _look(self) -> None:
        """Keep hold of the runs that are open: some end before the training does."""
        for tracker, (find, put) in _TRACKERS.items() if self._writes else ():
            module = sys.modules.get(tracker)  # never imported by us: the script uses it, or it does not
            if module is None or getattr(module, "__file__", None) is None:  # a folder of that name, as W&B makes one
                continue
            run = self._guard.call(tracker, find, module)
            if run is not None:
                self._found[tracker] = functools.partial(put, run, module)


def summary_of(report: JsonData) -> dict[str, float | str]:
    """The few numbers and words of a report (schema 1) by which runs are compared.

    >>> peak = {"where": "host", "bytes": 2**31, "step": 7, "phase": "forward"}
    >>> summary_of({"run": {"end": "finished"}, "leak": {"verdict": "no leak"}, "peaks": [peak]})
    {'end': 'finished', 'leak': 'no leak', 'peak_gib': 2.0, 'peak_step': 7, 'peak_phase': 'forward'}
    """
    leak = report.get("leak") or {}
    found: dict[str, float | str | None] = {
        "end": (report.get("run") or {}).get("end"),
        "leak": leak.get("verdict"),
        "leak_mib_per_step": leak["bytes_per_step"] / MIB if leak.get("verdict") == "leak" else None,
    }
    peaks = report.get("peaks") or ()
    peak = next((one for one in peaks if one["where"] != "host"), peaks[0] if peaks else None)
    if peak is not None:  # of each place the peak of the run comes first
        found |= {"peak_gib": peak["bytes"] / GIB, "peak_step": peak["step"], "peak_phase": peak["phase"]}
    found["advice"] = next((change["text"] for change in report.get("advice") or ()), None)
    return {key: value for key, value in found.items() if value is not None}


def _to_mlflow(run: _Run, mlflow: ModuleType, summary: _Summary, finding: Finding) -> None:
    client = mlflow.MlflowClient()  # takes a run that has ended, too
    for key, value in summary.items():
        if isinstance(value, str):
            client.set_tag(run.info.run_id, key, value)
        else:
            client.log_metric(run.info.run_id, key, value, step=finding.step)


def _to_comet(experiment: _Run, comet_ml: ModuleType, summary: _Summary, finding: Finding) -> None:
    experiment.log_others(dict(summary))


def _to_trackio(run: _Run, trackio: ModuleType, summary: _Summary, finding: Finding) -> None:
    words, levels = summary_of(finding.data.get("report") or {}), trackio.AlertLevel
    level = levels.WARN if words.get("leak") == "leak" else levels.INFO
    if words.get("end") != "finished":
        level = levels.ERROR
    title = "Memory: " + ", ".join(str(words[word]) for word in ("end", "leak") if word in words)
    lines = [f"{key}: {value}" for key, value in summary.items() if value != finding.text]
    run.alert(title, "\n".join([*lines, "", finding.text]), level=level, step=finding.step)


# By the tracker's module: what finds the run that is open in it, and what writes there
_TRACKERS: Mapping[str, tuple[Callable[[ModuleType], _Run], Callable[[_Run, ModuleType, _Summary, Finding], None]]] = {
    "wandb": (lambda wandb: getattr(wandb, "run", None), lambda run, _, summary, __: run.summary.update(dict(summary))),
    "mlflow": (lambda mlflow: mlflow.active_run(), _to_mlflow),
    "comet_ml": (lambda comet_ml: comet_ml.get_running_experiment(), _to_comet),
    "trackio": (lambda trackio: trackio.context_vars.current_run.get(), _to_trackio),
}
