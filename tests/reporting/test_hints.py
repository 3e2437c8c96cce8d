"""What is not known of a loop is told with the line that would change it, and only where there is something to know."""

import copy
from dataclasses import replace

import pytest

from forgather_mem.reporting.build import build_report
from forgather_mem.reporting.hints import hints_of
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.report import LeakReport, Peak
from forgather_mem.units import MIB
from tests.reporting.report_fixtures import all_well, text_of
from tests.reporting.summaries import cpu_run, read


def peak(phase: str, size: int, where: str = "host") -> Peak:
    return Peak(where=where, bytes=size, step=4, phase=phase)


@pytest.mark.parametrize("phases", [["forward", "data"], ["startup", "data"], ["other"], ["data", "forward"], []])
def test_a_loop_whose_peak_is_in_a_phase_as_well_or_not_known_needs_no_hint(phases: list[str]) -> None:
    assert list(hints_of([peak(phase, 1000 - number) for number, phase in enumerate(phases)])) == []


def test_a_peak_between_two_steps_of_any_place_has_one() -> None:
    (hint,) = hints_of([peak("forward", 9), peak("data", 8, "gpu0"), peak("forward", 7, "gpu0")])
    assert "`with watching.phase(" in hint


def test_in_a_run_that_leaks_nothing_is_asked_about_its_peak() -> None:
    summary = cpu_run()
    summary.facts.header = replace(summary.facts.header, is_observed=True)
    read(summary, 161, {"phase/host/data_peak_bytes": 900 * MIB, "host/rss_peak_bytes": 900 * MIB})
    assert [hint[:8] for hint in build_report(summary).hints] == ["The peak"]
    stayed = copy.deepcopy(summary)
    read(stayed, 162, {"host/rss_bytes": 899 * MIB})
    assert build_report(stayed).hints == (), "what was there at the end of a step is in this peak, too"
    summary.told = replace(summary.told, leak=LeakReport(verdict="leak", judged=True))
    assert build_report(summary).hints == ()


def test_a_loop_is_told_how_it_is_planned_if_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run_session.PLAN_FIRST, "1")
    assert ["forgather-mem plan" in hint for hint in hints_of([])] == [True]
    monkeypatch.setenv(run_session.PLAN_FIRST, run_session.BASELINE)
    assert list(hints_of([])) == []


def test_it_is_in_the_short_text_too() -> None:
    report = all_well()
    assert "watching.phase" not in text_of(report)
    report["hints"] = list(hints_of([peak("data", 9)]))
    assert "watching.phase" in text_of(report)
