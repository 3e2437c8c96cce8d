"""`forgather_mem.plan` refuses what it can't plan before it forks; a trainer's plan is known to its report."""

import gc
import weakref
from pathlib import Path

import pytest
import torch

import forgather_mem
from forgather_mem.errors import PlanError
from forgather_mem.planning.result import PLANS
from tests.training import make_trainer

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]


def test_it_takes_a_trainer_or_a_function() -> None:
    with pytest.raises(TypeError, match=r"plan\(int\): give a Trainer"):
        forgather_mem.plan(3)


def test_a_function_needs_its_model_and_a_batch() -> None:
    with pytest.raises(TypeError, match="the model and a batch are needed"):
        forgather_mem.plan(print)


def test_a_length_that_changes_nothing_is_refused_and_so_are_positions_that_a_model_does_not_have() -> None:
    table, rows = torch.nn.Embedding(16, 4), torch.arange(8)[None]
    with pytest.raises(PlanError, match="no rows of tokens"):
        forgather_mem.plan(lambda batch: table(batch).sum().backward(), table, None, rows, length=4)
    with pytest.raises(PlanError, match="IndexError: index out of range"):
        forgather_mem.plan(
            lambda batch: table(torch.arange(batch["input_ids"].size(1))).sum().backward(),
            table, None, {"input_ids": rows}, length=32,
        )  # fmt: skip


def test_a_plan_of_the_trainer_itself_is_in_its_report_and_another_one_is_not(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [], max_steps=12)
    watching = forgather_mem.attach(trainer)
    assert forgather_mem.plan(trainer, rows=2).peak_bytes
    assert trainer not in PLANS
    plan = forgather_mem.plan(trainer)
    trainer.train()
    planned = watching.report()["planned"]
    assert (planned["planned_bytes"], planned["phase"]) == (plan.peak_bytes, plan.phase)
    parts = {part["name"]: part["measured_bytes"] for part in planned["parts"]}
    assert parts["parameters"] == pytest.approx(plan.highest_parts()["parameters"], abs=100)  # the plan has buffers


def test_a_trainer_is_not_kept_alive(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [])
    forgather_mem.plan(trainer)
    alive = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert alive() is None
