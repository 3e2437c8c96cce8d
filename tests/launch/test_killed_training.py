"""Of a killed training the last batch is known; by it, and by a plan, why it was killed, and what was in use."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forgather_mem.launch.failed_training import parsed_sizes
from forgather_mem.launch.killed_training import KillInPlan, explained_kill
from forgather_mem.reporting.problems import killed_lines
from forgather_mem.telemetry.report import Breakdown, KilledReport, RunReport
from forgather_mem.units import MIB
from tests.launch.commands import RUN
from tests.launch.forked_run import run_forked
from tests.launch.test_failed_training import EMPTY, report_of

SCRIPT = """
import os, signal, sys
sys.path.insert(0, os.environ["TESTS"])
import torch
from tests.training import Bigrams, make_trainer

class Ends(Bigrams):
    def forward(self, input_ids, labels):
        if input_ids.shape[1] == 48:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(input_ids, labels)

def longer(rows, calls=[]):
    calls.append(1)
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return {name: one.repeat(1, 3 if len(calls) == 4 else 1) for name, one in batch.items()}

trainer = make_trainer("out", model=Ends())
trainer.data_collator = longer
trainer.train()
"""


@pytest.mark.fresh
def test_the_batch_of_a_killed_training_is_told_before_it_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    tests = str(Path(__file__).parent.parent.parent)
    result = run_forked([*RUN, "--report", "report.json", "train.py"], tmp_path, TESTS=tests)
    assert result.code == -9, result.err
    report = json.loads((tmp_path / "report.json").read_text())
    settings = report["run"]["settings"]
    assert (report["killed"]["phase"], settings["batch.rows"], settings["batch.length"]) == ("forward", "4", "48")
    assert parsed_sizes(settings["batch.sizes"]) == {"input_ids": (4, 48), "labels": (4, 48)}
    assert "planning" not in result.err, "memory was not the reason"


KILLED = KilledReport(step=1, phase="forward", signal=9, oom_kill_before=0, oom_kill_after=1, used_bytes=100 * MIB)
HOST = replace(EMPTY.host, limit_bytes=700 * MIB, limit_kind="cgroup", allocated_start_bytes=150 * MIB)
NEEDS = KillInPlan(
    phase="forward", num_bytes=540 * MIB, room_bytes=450 * MIB, parts={"activations": 500 * MIB, "batch": 9}
)


def text_of(report: RunReport, killed: KilledReport) -> str:
    return " ".join(" ".join(killed_lines(report, killed, 80)).split())


def test_what_does_not_fit_by_the_plan_is_why_it_was_killed() -> None:
    report = report_of(host=HOST)
    killed = explained_kill(report, KILLED, NEEDS)
    assert killed.why_now == "forward needs 540.0 MiB (planned: activations 500.0 MiB), and 450.0 MiB were left."
    assert f"Why now: {killed.why_now}" in text_of(report, killed)


def test_what_fits_by_the_plan_was_killed_for_what_is_not_in_it() -> None:
    settings = {"arguments.save_strategy": "steps", "arguments.save_steps": "6", "arguments.eval_steps": "3"}
    report = report_of(host=HOST, steps=6)
    report = replace(report, run=replace(report.run, settings=settings))
    fits = KillInPlan(phase="data", num_bytes=300 * MIB, room_bytes=450 * MIB, parts={"optimizer": 300 * MIB})
    killed = explained_kill(report, replace(KILLED, step=6, phase="other"), fits)
    assert killed.in_use == {
        "optimizer": 300 * MIB, "Python and libraries": 150 * MIB, "other processes": 100 * MIB,
        "not in the plan": 150 * MIB,
    }  # fmt: skip
    assert "killed after step 6, with a checkpoint: in a callback, or in code between steps." in text_of(report, killed)


def test_without_a_plan_it_is_told_by_what_was_measured() -> None:
    """10 MiB more in each of 20 steps, of 600 MiB that others had left."""
    report = report_of(host=HOST, steps=21, breakdown=Breakdown(parameters=50 * MIB, optimizer=100 * MIB))
    killed = explained_kill(report, replace(KILLED, process_bytes_per_step=10.0 * MIB, since_step=1), None)
    assert killed.in_use == {
        "parameters": 50 * MIB, "optimizer": 100 * MIB, "there before the first step": 100 * MIB,
        "grown step by step": 200 * MIB, "other": 150 * MIB,
    }  # fmt: skip
    assert (sum(killed.in_use.values()), killed.why_now) == (600 * MIB, None)
    assert "In use 600 MiB: grown step by step 200" in text_of(report, killed)
    assert explained_kill(replace(report, steps=0), KILLED, None).in_use == {}, "nothing of it was measured"
