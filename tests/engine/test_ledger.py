"""The ledger: what was freed, what was taken again, what the next steps cost, against known amounts and times."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from forgather_mem.actions.clear import clear_cache
from forgather_mem.actions.collect import collect
from forgather_mem.actions.trim import trim_host
from forgather_mem.callbacks import MemoryCallback, SimpleGarbageCollector, TBMemoryLogger
from forgather_mem.engine.ledger import Ledger
from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.telemetry.report import LedgerRow
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from forgather_mem.units import GIB, MIB
from tests.events import texts
from tests.fragments import Fragments, needs_glibc
from tests.memory import touched
from tests.reclaim.things import Cycle
from tests.reporting.report_fixtures import built, text_of
from tests.simulated_device import SimulatedDevice
from tests.training import make_trainer


def only_row(ledger: Ledger) -> LedgerRow:
    ledger.close()
    (row,) = ledger.rows()
    return row


# ---- bytes ----


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(("again_mib", "retaken_mib"), [(0, 0), (40, 40), (64, 64), (200, 64)])
def test_what_a_collection_freed_and_what_was_taken_again_of_it(again_mib: float, retaken_mib: float) -> None:
    ledger = Ledger()
    Cycle(64)
    ledger.book("collect", collect(), step=1)
    block = touched(again_mib) if again_mib else None
    ledger.follow("step_end", 2, 0.0)
    row = only_row(ledger)
    assert row.freed_bytes == pytest.approx(64 * MIB, abs=MIB)
    assert row.retaken_bytes == pytest.approx(retaken_mib * MIB, abs=MIB)
    assert row.objects >= 1
    if block is not None:
        block.close()


@pytest.mark.usefixtures("uncollected")
def test_a_peak_between_steps_counts_as_taken_again_but_not_what_comes_after_three_steps() -> None:
    ledger = Ledger()
    Cycle(64)
    ledger.book("collect", collect(), step=10)
    for step, mib in ((11, 0), (12, 30), (13, 10), (14, 60), (15, 60)):
        block = touched(mib) if mib else None
        ledger.follow("step_end", step, float(step))
        if block is not None:
            block.close()
    assert only_row(ledger).retaken_bytes == pytest.approx(30 * MIB, abs=MIB)


def test_a_devices_memory_is_counted_by_what_its_allocator_has_reserved(device: SimulatedDevice) -> None:
    ledger = Ledger()
    device.spike(512)
    device.hold(100)
    ledger.book("clear", clear_cache(), step=1)
    device.hold(250)
    ledger.follow("step_end", 2, 0.0)
    row = only_row(ledger)
    assert row.freed_bytes == 412 * MIB
    assert row.retaken_bytes == 150 * MIB


@pytest.mark.fresh
@pytest.mark.usefixtures("unfrozen")
@needs_glibc
def test_memory_at_new_addresses_is_not_taken_again() -> None:
    """A trim gives back the pages of holes: what is made in them is taken again, new holes beside them are not."""
    fragments, ledger = Fragments(), Ledger()
    for step, again_mib, new_mib in ((1, 0, 16), (2, 12, 0), (3, 0, 16), (4, 8, 8)):
        fragments.use_holes(again_mib)  # first, or it would get the new ones
        fragments.leave_holes(new_mib)
        ledger.follow("step_end", step, float(step))
        if step != 4:
            ledger.book("trim", trim_host(), step=step)
        outcome = ledger.outcome("trim")
        if outcome is not None:
            assert outcome.freed_bytes > 6 * MIB  # what lay free in the heap before takes some of the blocks
            assert outcome.retaken_bytes == pytest.approx(min(again_mib * MIB, outcome.freed_bytes), abs=2 * MIB)
    fragments.close()


# ---- seconds ----


def drive(ledger: Ledger, booked: dict[int, tuple[str, ...]], took_s: dict[int, float]) -> dict[str, LedgerRow]:
    """Steps of 1 s, or as `took_s` has it, half a second apart; after some of them actions of no cost are booked."""
    now_s = 0.0
    for step in range(1, 31):
        now_s += 0.5
        ledger.follow("step_begin", step, now_s)
        now_s += took_s.get(step, 1.0)
        ledger.follow("step_end", step, now_s)
        for what in booked.get(step, ()):
            ledger.book(what, {}, step=step)
            now_s += 7.0  # an evaluation, a checkpoint
    ledger.close()
    return {row.what: row for row in ledger.rows()}


def test_the_step_after_an_action_is_compared_with_steps_that_no_action_stands_before() -> None:
    rows = drive(Ledger(), {10: ("clear",), 20: ("clear",)}, {11: 1.6, 21: 1.5, 24: 9.0})
    assert rows["clear"].next_step_excess_s == pytest.approx(1.1)


def test_the_rhythm_of_every_second_step_leaves_steps_to_compare_with() -> None:
    rows = drive(Ledger(), dict.fromkeys(range(2, 30, 2), ("clear",)), dict.fromkeys(range(3, 31, 2), 1.2))
    assert rows["clear"].next_step_excess_s == pytest.approx(14 * 0.2, abs=0.21)


def test_with_an_action_at_every_step_nothing_is_claimed() -> None:
    rows = drive(Ledger(), dict.fromkeys(range(1, 31), ("clear",)), {})
    assert rows["clear"].next_step_excess_s == 0.0


def test_actions_of_one_step_share_what_the_next_step_took_longer() -> None:
    rows = drive(Ledger(), {10: ("collect", "clear")}, {11: 2.0})
    assert (rows["collect"].next_step_excess_s, rows["clear"].next_step_excess_s) == (0.5, 0.5)


def test_steps_that_vary_by_chance_add_up_to_nothing() -> None:
    booked = dict.fromkeys(range(5, 30, 5), ("clear",))
    rows = drive(Ledger(), booked, {6: 1.4, 11: 0.6, 16: 1.3, 21: 0.7, 26: 0.9})
    assert rows["clear"].next_step_excess_s == 0.0


def test_a_loop_that_does_not_tell_where_steps_begin_claims_nothing() -> None:
    ledger = Ledger()
    ledger.book("clear", {"cache/time_s": 0.1}, step=1)
    for step in range(2, 9):
        ledger.follow("step_end", step, 5.0 * step)
    assert not ledger.following
    assert only_row(ledger).next_step_excess_s == 0.0


def test_the_end_of_a_step_that_is_told_twice_counts_once() -> None:
    """Forgather's trainer fires `step_end` again at the end of an epoch."""
    ledger = Ledger()
    ledger.book("clear", {}, step=1)
    for step in range(2, 6):
        for _ in range(3):
            ledger.follow("step_end", step, float(step))
    assert ledger.following


def test_an_outcome_is_known_as_far_as_the_steps_since_have_shown() -> None:
    ledger = Ledger()
    ledger.book("clear", {"cache/time_s": 0.25}, step=1)
    assert ledger.outcome("clear") is None
    ledger.follow("step_end", 2, 2.0)
    outcome = ledger.outcome("clear")
    assert (outcome.step, outcome.time_s) == (1, 0.25)
    ledger.book("clear", {"cache/time_s": 0.5}, step=2)
    assert ledger.outcome("clear") == outcome


class SlowAfterwards(TrainerCallback):
    """The step after each third one takes longer, and evaluations are slow."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step and state.global_step % 3 == 0:
            time.sleep(0.3)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.8)


def test_in_a_training_slower_steps_are_booked_and_slow_evaluations_are_not(tmp_path: Path) -> None:
    collector = SimpleGarbageCollector(collect_freq_step=3)
    settings = {"eval_strategy": "steps", "eval_steps": 3}
    make_trainer(tmp_path, [collector, SlowAfterwards()], max_steps=8, rows=64, **settings).train()
    (row,) = collector.summary.ledger
    assert row["calls"] == 2
    assert 0.5 < row["next_step_excess_s"] < 1.4  # twice 0.3 s; with the evaluations it would be over 2.2 s


# ---- where it stands ----


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (LedgerRow(what="clear", calls=20, time_s=0.4, next_step_excess_s=2.1, freed_bytes=3 * GIB,
                   retaken_bytes=2900 * MIB),
         "our 20 clears took 400.0 ms and freed 3.0 GiB (2.8 GiB of it allocated again at once): "
         "`clear_cache: null` saves 2.5 s."),
        (LedgerRow(what="clear", calls=2, time_s=0.4, next_step_excess_s=2.1),
         "our 2 clears took 400.0 ms and freed nothing: `clear_cache: null` saves 2.5 s."),
        (LedgerRow(what="trim", calls=9, time_s=0.01, next_step_excess_s=0.01),
         "our 9 trims took 10.0 ms and freed nothing: leaving them out saves 20.0 ms."),
        (LedgerRow(what="trim", calls=9, time_s=1.0, freed_bytes=3 * GIB, retaken_bytes=2 * GIB),
         "our 9 trims took 1.0 s and freed 3.0 GiB (2.0 GiB of it allocated again at once)."),
        (LedgerRow(what="collect", calls=9, time_s=1.0, objects=12_345),
         "our 9 collections took 1.0 s and found 12,345 unreachable objects."),
        (LedgerRow(what="collect", calls=9, time_s=1.0),
         "our 9 collections took 1.0 s and freed nothing: `gc: null` saves 1.0 s."),
    ],
)  # fmt: skip
def test_the_report_says_of_each_kind_of_action_what_it_cost_and_if_it_was_worth_it(row: LedgerRow, line: str) -> None:
    summary = RunSummary(RunFacts(wall_s=100.0))
    summary.told = replace(summary.told, ledger=(row,))
    text = " ".join(text_of(built(summary), width=400).split())
    assert f"CLEAN-UP {line} OWN COST" in text


class Frees:
    """An action that frees and takes again by numbers, cheap and useless."""

    books = "trim"

    def __call__(self, moment: Any, sample: Any) -> dict[str, float]:
        return {"trim/time_s": 0.5, "trim/freed_bytes": 0.0}


@pytest.mark.slow
def test_the_table_stands_in_the_report_and_on_tensorboards_text_page(tmp_path: Path) -> None:
    callback = MemoryCallback([Rule(Every(steps=2), [Frees()])])
    ours = [callback, SimpleGarbageCollector(collect_freq_step=3), TBMemoryLogger(logging_dir=tmp_path / "page")]
    make_trainer(tmp_path, ours, max_steps=6).train()
    report = built(callback.summary)
    assert [(row["what"], row["calls"]) for row in report["ledger"]] == [("trim", 3), ("collect", 2)]
    assert report["ledger"][0]["time_s"] == 1.5
    assert "our 3 trims took 1.5 s" in text_of(report)
    ((_, page),) = texts(tmp_path / "page")["mem_report/verdict"]
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert rows[0] == "| what | calls | time | next steps longer by | freed | taken again | objects found |"
    assert [row.split(" | ")[:3] for row in rows[2:]] == [
        ["| trim", "3", "1.5 s"],
        ["| collect", "2", rows[3].split(" | ")[2]],
    ]
