"""After a watched training has run out of memory: what would have fitted, planned in a fresh process of its script."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import asdict, replace
from subprocess import DEVNULL

from forgather_mem.cli.command import Command
from forgather_mem.cli.plan import answer_of_script
from forgather_mem.diagnose.oom.recognition import recognise
from forgather_mem.errors import say
from forgather_mem.launch.failed_training import (
    HARD_LIMIT,
    FailedTraining,
    KillInPlan,
    explained_kill,
    failed_training,
    may_help_after,
)
from forgather_mem.reporting.problems import was_killed_for_memory
from forgather_mem.reporting.table import format_time
from forgather_mem.system.memory_limit import own_limits, raise_own_limits
from forgather_mem.telemetry.report import Change, KilledReport, RunReport
from forgather_mem.telemetry.report_schema import checked
from forgather_mem.units import format_bytes


def with_planned_advice(report: RunReport, command: Command, most_s: float) -> RunReport:
    """The report with what was planned to fit first in its advice; as it is where memory was not the end.

    Says at once where memory ran out. Ctrl-C ends the planning, and nothing else.

    Args:
        report: Of the command that has ended.
        command: What it was.
        most_s: How long to plan; 0 plans nothing.
    """
    at = report.oom or report.killed
    if at is None or (isinstance(at, KilledReport) and not was_killed_for_memory(at, report.host)):
        return report
    failed = failed_training(report, time.time() + 2 * most_s)
    if isinstance(at, KilledReport):
        report = replace(report, killed=explained_kill(report, at, None))  # of what was in use the plan is told
        if failed != "memory grows at each step":
            report = replace(report, advice=report.advice or tuple(may_help_after(report)))
        elif any(one.cure for one in report.leak.suspects[:1]):  # which is told, and no other helps for long
            report = replace(report, advice=())
    if os.path.basename(ran := report.run.script) not in ("", command.name):
        failed = f"{command.name} started it; forgather-mem plan {shlex.join((ran, *report.run.argv))}"
    failed = "--advice-s 0" if most_s <= 0 else failed if command.is_python else "a launcher started it"
    if isinstance(failed, str):
        return _not_planned(report, failed)
    is_told = at.step or at.phase != "other"
    head = f"out of memory {f'in {format_time(at.step, at.phase)}' if is_told else 'before the first step had ended'}"
    say(f"forgather-mem: {head}: planning what would have fitted ({most_s:g} s, at most twice that; Ctrl-C ends it)")
    raise_own_limits()  # this process has been given those of the training
    try:
        answer = _answer(command, failed, most_s)
    except KeyboardInterrupt:
        return _not_planned(report, "interrupted")
    if isinstance(at, KilledReport) and (where := checked(KillInPlan, answer.get("killed"))) is not None:
        report = replace(report, killed=explained_kill(report, at, where))
        if where.parts.get("results", 0) > where.room_bytes:  # as much is kept of smaller batches
            rest = tuple(one for one in report.advice if "per_device_eval_batch_size" not in one.set)
            report = replace(report, advice=rest)
    planned = checked(tuple[Change, ...], answer.get("changes")) or ()
    too_large = checked(tuple[Change, ...], answer.get("too_large")) or ()
    kinds = {_kind(one) for one in (*planned, *too_large)}
    is_late = "unfinished" in answer
    report = replace(report, advice=(*planned, *(one for one in report.advice if _kind(one) not in kinds)))
    if "problem" in answer:
        return _not_planned(report, str(answer["problem"]))
    if not kinds and not is_late:
        return _not_planned(report, "nothing is offered that can be planned")
    short = f"{most_s:g} s were not enough"
    fits = any(one.predicted_bytes for one in planned)
    late = f"planned, {short} for all: more may fit" if too_large or fits else f"not planned: {short}"
    what = late if is_late else "planned"
    if report.killed is not None:
        return replace(report, killed=replace(report.killed, fit=what))
    assert report.oom is not None
    helps_not = [report.oom.no_help.rstrip(".")] if report.oom.no_help else []
    firsts = [one.text.partition(": ")[0].partition(", ")[0] for one in too_large]  # of several values the first
    helps_not += [f"{', '.join(firsts)} (too large)"] * bool(firsts)
    beside = format_bytes(failed.beside_bytes - failed.grown[1])
    fit = f"{what}; each peak includes {beside} outside the training" if fits else what
    no_help, texts = ", ".join(helps_not) + "." if helps_not else None, tuple(change.text for change in report.advice)
    return replace(report, oom=replace(report.oom, advice=texts, fit=fit, no_help=no_help))


def _kind(change: Change) -> frozenset[str]:
    """The names of what it changes."""
    return frozenset({**change.set, **change.in_script})


def _not_planned(report: RunReport, why: str) -> RunReport:
    if report.oom is not None:
        return replace(report, oom=replace(report.oom, fit=f"not planned: {why}"))
    assert report.killed is not None
    return replace(report, killed=replace(report.killed, fit=f"not planned: {why}"))


def _answer(command: Command, failed: FailedTraining, most_s: float) -> dict[str, object]:
    """Of the script as `forgather-mem plan` starts it, in a session of its own."""
    began_s, limit = time.monotonic(), next(iter(own_limits()), None)
    request, nowhere = {"failed": asdict(failed), "meta": False}, dict.fromkeys(("stdin", "stdout", "stderr"), DEVNULL)
    code, answer = answer_of_script(command.argv, request, most_s, start_new_session=True, **nowhere)
    is_late, problem = time.monotonic() - began_s >= most_s, str((answer or {}).get("problem", ""))
    if limit is not None and (answer is None or "MemoryError" in problem or recognise(RuntimeError(problem))):
        problem = f"planning it takes more memory than {limit.limit} leaves, and {HARD_LIMIT}"
    elif answer is not None and (answer.get("changes") or answer.get("too_large") or not is_late):
        return answer
    else:
        problem = f"started again, it ended with {code} before its training"
    return {**(answer or {}), "problem": f"it took more than {most_s:g} s (--advice-s)" if is_late else problem}
