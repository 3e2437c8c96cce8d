"""What cleaning up and watching cost, in sentences."""

from typing import Any

import pytest

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


def test_a_plan_is_compared_with_what_was_measured_and_only_what_is_off_is_named() -> None:
    report = all_well()
    parts = [
        {"name": "parameters", "planned_bytes": 200 * MIB, "measured_bytes": 200 * MIB},
        {"name": "optimizer", "planned_bytes": 400 * MIB, "measured_bytes": 100 * MIB},
    ]
    report["planned"] = {"planned_bytes": 1000 * MIB, "measured_bytes": 990 * MIB, "phase": "backward", "parts": parts}
    assert (
        "PLAN      predicted 1,000.0 MiB of tensors at the peak (backward), was 990.0 MiB\n"
        "          (-1.0 %); optimizer 400.0 MiB, was 100.0 MiB\n" in text_of(report)
    )
    report["planned"] |= {"measured_bytes": None, "parts": parts[:1]}
    assert "(backward); parameters as predicted" in " ".join(text_of(report).split())


def call(file: str, seconds: float, whose: str = "user", freed_bytes: int = 0) -> dict[str, Any]:
    row = {"what": "gc.collect", "file": file, "line": 9, "calls": 5, "seconds": seconds}
    return {**row, "freed_bytes": freed_bytes, "whose": whose}


OVER_THE_BUDGET = """\
OWN COST  1.3 % of the run: 11.0 ms in each step (1.2 % of it), 2.6 s once,
          400.0 ms of it to free memory; below 0.5 % when read every 3rd step
          sampled less often to stay within budget: PSS, phases, tracked objects
"""


def test_readings_that_were_too_dear_are_named_with_what_was_done_about_it() -> None:
    summary = gpu_run()
    summary.self_s, summary.steady_self_s, summary.steady_s, summary.steady_steps = 25.0, 22.4, 1800.0, 2000
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
    assert "Own cost 1.2 % of a step and 2.6 s once, 3 readings sampled less often." in " ".join(
        text_of(report).split()
    )


def test_what_is_done_once_is_no_reason_to_read_more_rarely() -> None:
    summary = gpu_run()
    summary.self_s, summary.steady_self_s, summary.steady_s, summary.steady_steps = 25.0, 4.4, 1800.0, 2000
    own = "OWN COST  1.3 % of the run: 2.0 ms in each step (0.2 % of it), 20.6 s once, 400.0 ms of it to free memory"
    assert own in " ".join(text_of(built(summary)).split()).replace("OWN COST", "OWN COST ")


def test_where_readings_have_become_rare_the_advice_to_read_more_rarely_is_not_given() -> None:
    summary = gpu_run()
    summary.self_s, summary.steady_self_s, summary.steady_s, summary.steady_steps = 25.0, 22.4, 1800.0, 2000
    told = {"kind": "backed_off", "step": 2000, "text": "...", "data": {"what": "watch (every 16th step)"}}
    summary.tell(Finding(**told))
    text = " ".join(text_of(built(summary)).split())
    assert "when read every" not in text
    assert "sampled less often to stay within budget: watch (every 16th step)" in text


def test_of_a_short_run_the_cost_of_the_start_is_told_apart_from_what_a_step_costs() -> None:
    summary = cpu_run()
    summary.facts.wall_s = 1.2
    summary.self_s, summary.steady_self_s, summary.steady_s, summary.steady_steps = 0.3, 0.01, 1.0, 50
    report = built(summary)
    assert (report["overhead"]["step_s"], report["overhead"]["once_s"]) == pytest.approx((0.0002, 0.29))
    assert "OWN COST  25.0 % of the run: 0.2 ms in each step (1.0 % of it), 290.0 ms once\n" in text_of(report)
    report["leak"].update(verdict="no leak", bytes_per_step_high=4096.0)
    assert "Own cost 1.0 % of a step and 290.0 ms once." in " ".join(text_of(report).split())


def test_what_freeing_memory_took_beside_busy_processes_is_no_more_than_all_that_we_cost() -> None:
    summary = gpu_run()  # 400 ms of actions, by the clock on the wall
    summary.self_s = 0.3
    assert "(300.0 ms, nearly all of it to free memory)" in " ".join(text_of(built(summary)).split())
