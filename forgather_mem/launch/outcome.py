"""What the parent prints and writes when the command has ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from forgather_mem.cli.command import BROKEN, UNDECIDED, Arguments, Command
from forgather_mem.diagnose.oom.context import RunSettings
from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.errors import ForgatherMemError, missing, say
from forgather_mem.files import is_real_folder, write_chosen_file
from forgather_mem.formats.ring import read_ring, ring_files
from forgather_mem.launch.at_exit import add_last_error, word_of
from forgather_mem.launch.sampler import Sampler
from forgather_mem.launch.session_folder import SessionFolder
from forgather_mem.launch.short_runs import OF_A_SIGNAL, USAGE_S
from forgather_mem.launch.waiting import Ended
from forgather_mem.reporting.build import build_report, write_report
from forgather_mem.reporting.problems import was_killed_for_memory
from forgather_mem.reporting.ranks import NO_WORD, LauncherWord, first_failure
from forgather_mem.reporting.run_dir import killed_report, run_report
from forgather_mem.reporting.table import format_place
from forgather_mem.reporting.text import path_from_here, report_command, report_text
from forgather_mem.system.cgroups import kills_since
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.report_schema import from_dict, to_dict
from forgather_mem.units import format_bytes, parse_bytes

_OTHERS = 4  # trainings of one command that are told beside the worst: a guess at what a screen can take
_Judgement = tuple[int, str]  # `BROKEN` or `UNDECIDED`, and a sentence about it; of a limit that is kept there is none
# Signals that ask the command to end; others kill it.
_ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def report_outcome(folder: SessionFolder, arguments: Arguments, command: Command, ended: Ended, seen: Sampler) -> int:
    """Write the reports of all trainings, print the worst one, and judge the limits that the user set.

    Returns:
        The exit code that the limits ask for: 0, `BROKEN` or `UNDECIDED`.
    """
    is_gone = folder.path is not None and not os.path.isfile(os.path.join(folder.path, run_session.NOTES))
    trainings = run_session.registered(folder.path) if folder.path else []
    word, session = word_of(folder.path), folder.path
    start = build_report(RunSummary(RunFacts(from_dict(RunHeader, seen.header))))
    places = [(Path(place), Path(run_session.kept_of(str(session), place))) for place in trainings]
    reports = [_finished(both, command, ended, start) for both in places[:-1]]
    last = places[-1] if places else (Path(session),) if session else ()
    firsts = run_session.noted(folder.path, run_session.FIRST) if folder.path else []
    phase = [*firsts, "other"][-2:][0].partition("\t")[0]
    report = _seen_by_parent(_finished(last, command, ended, start, word), seen, ended, phase)
    asked = dict(one.split("=", 1) for told in firsts for one in told.split("\t") if "=" in one)
    of_loop = {name: told for name, told in report.run.settings.items() if name.startswith("generate.")}  # came later
    reports.append(replace(report, run=replace(report.run, settings={**report.run.settings, **asked, **of_loop})))
    if not trainings:
        reports = [_seen_from_outside(reports[0], seen, ended, phase)]
    reports[-1] = _with_others(reports[-1], seen)
    unknown = ["the command has removed what its trainings noted"] * is_gone
    unknown += [sentence for report in reports for sentence in _unknown(report)]
    if command.is_python and ended.signal is None:
        reports = [_not_killed(report) for report in reports]
    if ended.code != 0 and folder.path:
        reports[-1] = add_last_error(reports[-1], folder.path)
    for report in reports:
        _write_in_its_folder(report)
    worst = _worst(reports)
    # Once the reports are written: it takes a while
    if (reports[worst].oom or reports[worst].killed) and run_session.rank_and_size()[1] == 1:
        from forgather_mem.launch.advice import with_planned_advice

        planned = with_planned_advice(reports[worst], command, arguments.advice_s)
        if planned is not reports[worst]:
            reports[worst] = planned
            _write_in_its_folder(planned)
    in_a_line = None if trainings or arguments.report or arguments.limits else _failure_in_a_line(reports[-1], ended)
    if in_a_line is not None:
        say(in_a_line)
    else:
        print_reports(reports, run_session.noted(folder.path, run_session.PRINTED) if folder.path else [])
    if trainings or (in_a_line is not None and reports[-1].run.error is None):
        folder.remove()
    is_written = arguments.report is None or _write_where_wanted(reports[worst], arguments.report)
    if not arguments.limits:
        return 0
    found = [(UNDECIDED, f"can't tell: {sentence}") for sentence in unknown] + [(UNDECIDED, "")] * (not is_written)
    found += [*_peaks_judged(reports, arguments), *_leaks_judged(reports, arguments)]
    found += _growth_judged(reports, arguments, ended, known=not unknown)
    found.sort(key=lambda judged: judged[0])  # what is exceeded first
    for sentence in dict.fromkeys(sentence for _, sentence in found if sentence):
        say(f"forgather-mem: {sentence}")
    return min((code for code, _ in found), default=0)


def _write_in_its_folder(report: RunReport) -> None:
    if report.run.folder:
        with contextlib.suppress(OSError):
            write_report(report, report.run.folder)


def print_reports(reports: Sequence[RunReport], printed: Sequence[str]) -> None:
    """The report of the worst training, and where the others are; not again what the script has printed itself."""
    others = list(reports)
    worst = others.pop(_worst(reports))
    shown = _is_known(worst, printed)
    if not shown:
        say(report_text(worst, color=os.isatty(2)), is_shown=True)
    unknown = [report for report in reversed(others) if report.run.folder and not _is_known(report, printed)]
    if unknown:
        which = "the worst" if any(_how_bad(worst)) else "the last"
        which += ", which the script has printed," if shown else ""
        say(f"forgather-mem: this was {which} of {len(reports)} trainings; of the others:")
    for report in unknown[:_OTHERS]:
        end = "" if report.run.end == "finished" else str(report.run.end)
        leak = report.leak.why if report.leak.undecided else report.leak.verdict
        peak = format_bytes(report.host.rss_peak_bytes)
        told = ", ".join(filter(None, (report.run.worker, end, leak, f"host peak {peak}")))
        say(f"  {report_command(str(report.run.folder))}\n    {told}")


def _worst(reports: Sequence[RunReport]) -> int:
    """Which of them has failed, else which has leaked; of equal ones the last."""
    return max(range(len(reports)), key=lambda number: (_how_bad(reports[number]), number))


def _how_bad(report: RunReport) -> tuple[bool, bool]:
    failed = report.oom is not None or report.killed is not None or report.run.end == "exception"
    return failed, report.leak.verdict == "leak"


def _failure_in_a_line(report: RunReport, ended: Ended) -> str | None:
    """What is told of a command that failed soon, before it trained, where memory was not the cause; else None."""
    run = report.run
    soon = ended.code is not None and 0 < ended.code <= OF_A_SIGNAL and ended.wall_s < USAGE_S
    told = (report.oom, report.killed, report.first_failure, *report.device, *report.hints, *report.switched_off)
    if not soon or run.world_size > 1 or any(part is not None for part in told):
        return None
    error = (run.error or "").partition(":")[0] + (f" at {run.error_line}" if run.error_line else "")
    more = f" ({report_command(run.folder)})" if error and run.folder else ""
    peak = format_bytes(report.host.rss_peak_bytes)
    return f"forgather-mem: no training step{f': {error}' if error else ''}; peak {peak}{more}"


def _is_known(report: RunReport, printed: Sequence[str]) -> bool:
    """Whether the script has printed this report as it stands: of one process, and of a command that ended well."""
    run = report.run
    return run.folder in printed and run.exit_code == 0 and run.world_size == 1


def _write_where_wanted(report: RunReport, path: str) -> bool:
    try:
        write_chosen_file(path, (json.dumps(to_dict(report), indent=1) + "\n").encode())
    except OSError as error:
        say(f"forgather-mem: can't write --report {path}: {error.strerror}")
        return False
    return True


def _finished(
    places: Sequence[Path], command: Command, ended: Ended, start: RunReport, word: LauncherWord | None = None
) -> RunReport:
    """The report of the run in the first of these folders that has one, with how the command ended.

    The last one gets the `word` of a launcher, too. `start` is what the parent has known of the process from its start.
    """
    report = start
    there = [place for place in places if is_real_folder(place)]  # else the command has put something in its place
    for place in there:
        # Nothing could be written to the disk, or the command has cleared it away
        with contextlib.suppress(ForgatherMemError):
            report = run_report(place, word or NO_WORD)
            if word is not None and command.is_python and report.run.world_size == 1:
                report = _until_its_end(report, place, ended)
            break
    # The command's own name for it counts from a folder that it may have left
    run = replace(report.run, folder=next((str(place) for place in places[:1] if place in there), None))
    if not run.script:
        run = replace(run, script=start.run.script, argv=start.run.argv)
    report = replace(report, run=run)
    if word is not None and report.first_failure is None:  # of ranks that left nothing
        report = replace(report, first_failure=first_failure((), word))
    if word is not None and word.asked is not None and report.killed is not None:  # who launched it was, as all of it
        report = replace(_ended_as(report, "interrupted"), killed=replace(report.killed, signal=word.asked))
    if word is not None and ended.signal is not None:
        report = killed_report(report, ended.signal)
        return _ended_as(report, "interrupted") if ended.signal in _ASKED else report
    return report if ended.signal is not None else replace(report, run=replace(report.run, exit_code=ended.code))


def _seen_by_parent(report: RunReport, sampler: Sampler, ended: Ended, phase: str) -> RunReport:
    """Of a process that was killed: what it can't have told of its end; its last phase outside a training."""
    killed, kills = report.killed, kills_since(sampler.kills)
    if killed is None or ended.signal != signal.SIGKILL:
        return report
    if killed.oom_kill_before is None and kills is not None:
        count = sampler.kills["count"]
        killed = replace(killed, oom_kill_before=count, oom_kill_after=count + kills)
    process_bytes = max(killed.process_bytes or 0, sampler.last_bytes) or None
    killed = replace(killed, process_bytes=process_bytes, phase=phase if killed.has_trained else killed.phase)
    peak = max(report.host.rss_peak_bytes, ended.peak_bytes)
    return replace(report, killed=killed, host=replace(report.host, rss_peak_bytes=peak))


def _with_others(report: RunReport, sampler: Sampler) -> RunReport:
    """Of a process killed at the limit of its group: what others of that had then.

    What is passed between processes counts for one that has touched it, or for none.
    """
    killed, host, settings = report.killed, report.host, RunSettings(arguments=report.run.settings)
    if killed is None or not was_killed_for_memory(killed, host) or host.limit_kind != "cgroup":
        return report
    others = max(0, host.limit_bytes - max(host.rss_peak_bytes, killed.process_bytes or 0))
    if num_workers := killed.num_workers or settings.number("loader.num_workers", 0):
        workers, ahead = max(others, killed.workers_bytes or 0), min(others, sampler.shared_bytes)
        killed = replace(killed, workers_bytes=workers, ahead_bytes=ahead, num_workers=num_workers)
    elif not report.run.folder:
        killed = replace(killed, others_bytes=others - (killed.workers_bytes or 0))
    return replace(report, killed=killed)


def _not_killed(report: RunReport) -> RunReport:
    """The report of a process that has ended by itself: without another end it called os._exit during its training."""
    if report.run.end != "killed" or report.run.world_size > 1:
        return report
    return replace(_ended_as(report, "interrupted"), killed=None)


def _until_its_end(report: RunReport, place: Path, ended: Ended) -> RunReport:
    """With the time from the last sign of life of a process to its end, which only its parent knows.

    More than it has run is of a clock that was set.
    """
    box = ring_files(place).get(0)
    with missing(OSError, ValueError):
        silent_s = ended.time_s - read_ring(box).state.time_s if box is not None else -1.0
        if report.killed is not None and 0 <= silent_s <= ended.wall_s:
            run = replace(report.run, wall_s=report.run.wall_s + silent_s)
            return replace(report, run=run, killed=replace(report.killed, silent_s=silent_s))
    return report


def _ended_as(report: RunReport, end: str) -> RunReport:
    return replace(report, run=replace(report.run, end=end))


def _seen_from_outside(report: RunReport, sampler: Sampler, ended: Ended, phase: str) -> RunReport:
    """The report of a command without a training, with what the parent saw from start to end, and its last phase."""
    if report.killed is not None and phase != "other":
        killed = replace(report.killed, step=int(phase in STEP_PHASES), phase=phase, silent_s=None)
        report = replace(report, killed=killed)
    host = replace(
        report.host,
        rss_start_bytes=sampler.first_bytes or report.host.rss_start_bytes,
        rss_end_bytes=report.host.rss_end_bytes or sampler.last_bytes,
        rss_peak_bytes=report.host.rss_peak_bytes or ended.peak_bytes,
    )
    if not host.limit_bytes:
        from forgather_mem.system.memory_limit import limit_facts  # imports all probes: 20 ms

        host = replace(host, **limit_facts()._asdict())
    if not report.run.folder and ended.code == 0:
        report = _ended_as(report, "finished")  # nothing else could tell
    return replace(report, run=replace(report.run, wall_s=ended.wall_s), host=host, peaks=())  # peaks belong to steps


def _unknown(report: RunReport) -> Iterator[str]:
    """Why a training may have exceeded a limit although nothing says so."""
    yield from (*report.left_out, *report.switched_off)
    if report.missing_ranks:
        yield f"no report of rank {', '.join(map(str, report.missing_ranks[:8]))}"
    if {report.run.end, *(row.end for row in report.ranks or ())} & {None, "killed"}:
        yield "a training has recorded no end"


def _peaks_judged(reports: Sequence[RunReport], arguments: Arguments) -> Iterator[_Judgement]:
    for where, size in arguments.max_peaks:
        rows = [[row.peak_allocated_bytes for row in report.device if row.where == where] for report in reports]
        if where == "host":
            rows = [[report.host.rss_peak_bytes] for report in reports]
        found = [max(sizes, default=0) for sizes in rows]
        if max(found) > parse_bytes(size):
            peak = f"the peak of {format_place(where)} was {format_bytes(max(found))}"
            yield BROKEN, f"{peak}, over --max-peak {where}={size}"
        elif not any(found) or (where == "host" and not all(found)):  # a mistyped number, or a device not used
            yield UNDECIDED, f"--max-peak {where}={size}: {format_place(where)} was not measured"


def _leaks_judged(reports: Sequence[RunReport], arguments: Arguments) -> Iterator[_Judgement]:
    if arguments.fail_on != "leak":
        return
    if any(report.leak.verdict == "leak" for report in reports):
        yield BROKEN, "a leak was found (--fail-on leak)"
    for report in reports:
        why = f"undecided: {report.leak.why}"
        if not report.leak.judged:
            why = "no training was watched for leaks"
        elif not report.leak.why:
            why = f"no verdict after {report.steps:,} step{'s' * (report.steps != 1)}"
        if report.leak.verdict not in ("leak", "no leak", "copied pages"):
            yield UNDECIDED, f"--fail-on leak: {why}"
            return


def _growth_judged(runs: Sequence[RunReport], asked: Arguments, ended: Ended, *, known: bool) -> Iterator[_Judgement]:
    if asked.baseline is None:
        return
    why = f"the command ended with {ended.code}" if ended.code else "not all is known of this run"
    if ended.code != 0 or (asked.update_baseline and not known):
        done = "written" if asked.update_baseline else "compared with"
        yield UNDECIDED, f"--baseline: not {done}, since {why}"
        return
    grown, missing = against_baseline(asked.baseline, runs, update=asked.update_baseline)
    yield from ((BROKEN, sentence) for sentence in grown)
    yield from ((UNDECIDED, sentence) for sentence in missing)


def against_baseline(path: str, reports: Sequence[RunReport], *, update: bool) -> tuple[list[str], list[str]]:
    """What has grown, a sentence each, and what could not be compared; or the file is written."""
    from forgather_mem.comparing.baseline import Baseline, NoBaseline

    try:
        before = Baseline.replaceable(path) if update else Baseline.read(path)
        now = Baseline.of(reports, before)
        if update:
            now.write(path)
            say(f"forgather-mem: the baseline is in {path_from_here(path)}")
            return [], []
    except NoBaseline as error:
        return [], [f"--baseline: {error}"]
    assert before is not None, "only an update needs none"
    grown = list(before.grown(now))
    allowed = f"this is more than allowed_growth in {path_from_here(path)}; --update-baseline accepts it"
    grown += [allowed] * bool(grown)
    missing = [f"--baseline: {sentence}" for sentence in before.missing(now)]
    if not grown and not missing:
        say(f"forgather-mem: no growth above what is allowed since the baseline {path_from_here(path)}")
    return grown, missing
