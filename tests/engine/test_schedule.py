"""Rules that keep to a budget: how rarely they are looked at, from shares that are given."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forgather_mem.engine.run import Run
from forgather_mem.engine.schedule import EventSchedule, OverheadMeter, PaceLimits, schedules_of
from forgather_mem.probes import HostProbe
from forgather_mem.sinks import Capture
from forgather_mem.system.peak_windows import host_peaks
from forgather_mem.system.procfs import own_memory
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from forgather_mem.units import MIB


def nothing(moment: Any, sample: Any) -> dict[str, float]:
    return {}


def slowly(moment: Any, sample: Any) -> dict[str, float]:
    time.sleep(0.001)
    return {}


def plan_of(*rules: Rule) -> EventSchedule:
    plan = schedules_of(rules, None, lambda work: work, FailureGuard())["step_end"]
    for rule in plan.rules:
        rule.has_run = True
    return plan


def share_after(share: float, plan: EventSchedule, fixed_share: float = 0.0) -> None:
    """Readings take this share of the time as rarely as they are taken now, and what else is ours the fixed one."""
    own = OverheadMeter()
    for _ in range(PaceLimits.share_records + 2):  # those of the start do not count
        own.took(fixed_share + share, share, 1.0, [{"step_end": plan}])


@pytest.mark.parametrize(("share", "period"), [(0.004, 1), (0.009, 2), (0.03, 8), (0.9, PaceLimits.most_stretch)])
def test_a_rule_above_its_budget_is_looked_at_so_rarely_that_it_keeps_it(share: float, period: int) -> None:
    plan = plan_of(Rule(when=Every(steps=1), do=[nothing], budget_frac=0.005))
    share_after(share, plan)
    assert plan.periods == (period,)


def test_a_long_run_is_read_half_as_often_after_every_8192_records_and_that_is_no_backing_off() -> None:
    plan = plan_of(Rule(when=Every(steps=1), do=[nothing], budget_frac=0.005))
    own, step, records = OverheadMeter(), 0, list[int]()
    while step < 1_000_000:
        step += plan.periods[0]
        own.took(0.0001, 0.0001, 1.0, [{"step_end": plan}])
        records.append(step)
    assert len(records) * 833 < 64 * MIB, "what a record takes in the log and in TensorBoard together, in bytes"
    assert records[8000] == 8001
    assert plan.periods[0] == 64
    assert plan.rules[0].longest_stretch == 1


def test_what_is_done_once_at_the_beginning_stretches_nothing() -> None:
    plan = plan_of(Rule(when=Every(steps=1), do=[nothing], budget_frac=0.005))
    own = OverheadMeter()
    for _ in range(2):
        own.took(0.5, 0.5, 1.0, [{"step_end": plan}])
    for _ in range(PaceLimits.share_records):
        own.took(0.001, 0.001, 1.0, [{"step_end": plan}])
    assert plan.periods == (1,)


def test_a_rule_that_has_not_run_yet_runs_once_at_its_own_step() -> None:
    plan = plan_of(Rule(when=Every(steps=10), do=[nothing], budget_frac=0.005))
    plan.rules[0].has_run = False
    share_after(0.9, plan)
    assert plan.periods == (10,)
    plan.rules[0].has_run = True
    share_after(0.9, plan)
    assert plan.periods == (640,)


@pytest.mark.parametrize(
    ("every", "shares"),
    [
        (10, [(0.009, 0.0, 20), (0.001, 0.0, 10)]),
        (1, [(0.2, 0.002, PaceLimits.most_stretch), (0.001 / PaceLimits.most_stretch, 0.002, 1)]),
        (1, [(0.004, 0.004, 4), (0.004 / 4, 0.0048, 4)]),
        (1, [(0.0009, 0.05, 1), (0.004, 0.05, 4)]),  # a fifth of the budget is theirs
    ],
    ids=["its own period is multiplied and comes back", "after one dear reading every step is read again",
         "what reading more rarely does not save counts too", "cheap ones go on beside what is dear and no reading"],
)  # fmt: skip
def test_a_period_follows_the_shares(every: int, shares: list[tuple[float, float, int]]) -> None:
    plan = plan_of(Rule(when=Every(steps=every), do=[nothing], budget_frac=0.005))
    for share, fixed_share, period in shares:
        share_after(share, plan, fixed_share)
        assert plan.periods == (period,)


def test_rules_without_a_budget_keep_their_rhythm_beside_it() -> None:
    plan = plan_of(Rule(when=Every(steps=1), do=[nothing], budget_frac=0.005), Rule(when=Every(steps=6), do=[nothing]))
    share_after(0.03, plan)
    assert [rule.every_steps for rule in plan.rules] == [8, 6]
    assert plan.periods == (6, 8)


@pytest.mark.fresh  # the kernel's mark must not stand high from other tests
def test_a_peak_stands_in_the_record_of_its_own_step_however_rare_the_readings_are(tmp_path: Any) -> None:
    capture, slow = Capture(), Rule(when=Every(steps=1), do=[slowly])
    watched = Rule(when=Every(steps=1), do=[HostProbe(limits=False, pss=False)], budget_frac=0.001)
    state = SimpleNamespace(global_step=0, epoch=0.0)
    run = Run.begin(SimpleNamespace(output_dir=str(tmp_path)), state, strict=True)
    members = object(), object()
    plan, other = (
        run.add_member(member, [rule], [capture], 0.0)["step_end"]
        for member, rule in zip(members, (watched, slow), strict=True)
    )
    peaks = host_peaks()
    other_window = peaks.open(reset=False)
    ballast = own_memory().resident_bytes // MIB
    for step in range(1, 201):
        if step == 70:
            block = np.ones((ballast // 4 + 64) * MIB, dtype=np.uint8)
            del block
            other_window.look()  # what others have seen of it does not matter
        state.global_step = step
        for of_a_callback in (plan, other):
            run.handle(of_a_callback, None, state, None, {})
    run.close()
    read = [sample.step for sample in capture.samples if "host/rss_bytes" in sample.values and sample.step > 32]
    other_window.close()
    assert read == [64, 70, 128, 192]
    assert run.summary.spans["host/rss_peak_bytes"].step == 70
