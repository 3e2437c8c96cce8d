"""What cleaning up and watching cost, in the report's sentences."""

from dataclasses import replace
from typing import Any

import pytest

from forgather_mem.telemetry.records import Finding
from forgather_mem.units import MIB
from tests.reporting.report_fixtures import all_well, built, text_of
from tests.reporting.summaries import cpu_run, gpu_run


def test_dear_clean_up_calls_are_told_without_a_leak_too() -> None:
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


def test_what_watching_costs_is_one_line_without_what_was_asked_for() -> None:
    summary = gpu_run()  # 400 ms of clears, for half an hour
    summary.self_s, summary.steady_self_s, summary.steady_s, summary.steady_steps = 25.0, 4.4, 1800.0, 2000
    told = {"kind": "backed_off", "step": 2000, "text": "...", "data": {"what": "watch (every 16th step)"}}
    summary.tell(Finding(**told))
    report = built(summary)
    assert report["overhead"]["backed_off"] == [{"what": "watch (every 16th step)", "text": "..."}]
    own = "OWN COST  2.2 ms in each step of 900.0 ms, 20.6 s once; 1.3 % of the run\n"
    assert own in text_of(report)
    assert "16th" not in text_of(report), "a reader could do nothing about it"


def test_a_short_run_has_no_shares() -> None:
    summary = cpu_run()
    summary.facts.wall_s = 1.2
    summary.self_s, summary.steady_self_s, summary.steady_s, summary.steady_steps = 0.3, 0.01, 1.0, 50
    summary.facts.header = replace(summary.facts.header, setup_s=0.1, setup_bytes=5 * MIB)
    report = built(summary)
    assert (report["overhead"]["step_s"], report["overhead"]["once_s"]) == pytest.approx((0.0002, 0.388))
    told = " ".join(text_of(report).split())
    assert "0.2 ms in each step of 20.0 ms, 388.0 ms and 5.0 MiB once; 400.0 ms in all, startup included" in told


def test_collections_that_gave_nothing_name_the_key_that_saves_their_time() -> None:
    report = all_well()
    row = {
        "what": "collect", "calls": 3, "time_s": 3.4, "next_step_excess_s": 0.0, "freed_bytes": 0, "retaken_bytes": 0,
    }  # fmt: skip
    report["ledger"] = [{**row, "objects": 12}]
    report["leak"] = {"verdict": "not enough data"}
    text = " ".join(text_of(report).split())
    assert "our 3 collections took 3.4 s and found 12 unreachable objects: `gc: null` saves 3.4 s." in text
    report["ledger"] = [{**row, "objects": 0}]
    assert "took 3.4 s and freed nothing: `gc: null` saves 3.4 s." in " ".join(text_of(report).split())
    report["ledger"] = [{**row, "objects": 5000}]
    assert "null" not in text_of(report)
