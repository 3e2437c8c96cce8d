"""What cleaning up and watching cost, in sentences."""

from __future__ import annotations

from typing import Any

from forgather_mem.telemetry.records import Finding
from forgather_mem.units import MIB
from tests.reporting.report_fixtures import all_well, built, text_of
from tests.reporting.summaries import cpu_run, gpu_run


def test_dear_clean_up_calls_stand_in_the_short_text_too() -> None:
    report = all_well()
    report["cleanup_calls"] = [call("transformers/trainer.py", 30.0, whose="library", freed_bytes=MIB)]
    assert (
        "CLEAN-UP  gc.collect() at transformers/trainer.py:9 (a library): 5 calls, 30.0 s\n"
        "          (1.6 % of the run), freed 1.0 MiB.\n" in text_of(report)
    )


def test_calls_that_cost_little_and_our_own_are_not_told() -> None:
    report = all_well()
    report["cleanup_calls"] = [call("train.py", 18.0), call("forgather_mem/actions/collect.py", 99.0, whose="us")]
    assert text_of(report) == text_of(all_well())


def call(file: str, seconds: float, whose: str = "user", freed_bytes: int = 0) -> dict[str, Any]:
    row = {"what": "gc.collect", "file": file, "line": 9, "calls": 5, "seconds": seconds}
    return {**row, "freed_bytes": freed_bytes, "whose": whose}


OVER_THE_BUDGET = """\
OWN COST  1.3 % of the run (25.0 s, 400.0 ms of it to free memory); readings
          take 1.2 % of a step: below 0.5 % when read every 3rd step
          sampled less often to stay within budget: PSS, phases, tracked objects
"""


def test_readings_that_were_too_dear_are_named_with_what_was_done_about_it() -> None:
    summary = gpu_run()
    summary.self_s, summary.steady_self_s, summary.steady_s = 25.0, 22.4, 1800.0
    told = [
        {"what": "PSS", "text": "PSS: read every 50.0 s instead of every 10.0 s; the slowest reading took 50.0 ms"},
        {"what": "phases", "text": "phases: missing in 400 of 2,000 readings; measuring them takes 43 us"},
        {"what": "tracked objects", "text": "tracked objects: read every 30.0 s"},
        {"what": "PSS", "text": "PSS: not read at 7.0 GiB resident; that would have taken more than 50.0 ms"},
    ]
    for entry in told:
        summary.tell(Finding(kind="backed_off", step=2000, text=entry["text"], data={"what": entry["what"]}))
    report = built(summary)
    assert report["overhead"]["backed_off"] == told
    assert OVER_THE_BUDGET in text_of(report)
    report["leak"].update(verdict="no leak", bytes_per_step_high=4096.0)
    assert "Own cost 1.3 %, 3 readings sampled less often." in " ".join(text_of(report).split())


def test_what_is_done_once_is_no_reason_to_read_more_rarely() -> None:
    summary = gpu_run()
    summary.self_s, summary.steady_self_s, summary.steady_s = 25.0, 4.4, 1800.0
    assert "OWN COST  1.3 % of the run (25.0 s, 400.0 ms of it to free memory)\n" in text_of(built(summary))


def test_of_a_short_run_the_cost_of_the_start_is_told_apart_from_what_a_step_costs() -> None:
    summary = cpu_run()
    summary.facts.wall_s = 1.2
    summary.self_s, summary.steady_self_s, summary.steady_s = 0.3, 0.01, 1.0
    report = built(summary)
    assert "OWN COST  1.0 % of a step, 300.0 ms including the start\n" in text_of(report)
    report["leak"].update(verdict="no leak", bytes_per_step_high=4096.0)
    assert "Own cost 1.0 % of a step, 300.0 ms including the start" in " ".join(text_of(report).split())
    assert "OWN COST  25.0 % of the run (300.0 ms" in text_of(
        {**report, "overhead": {**report["overhead"], "share_of_step": 0.2}, "leak": built(cpu_run())["leak"]}
    )
