"""Remedies of a failed training are planned in its own Trainer, and only once the plan has shown the failure."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

import forgather_mem
from forgather_mem.launch.failed_training import FailedTraining
from forgather_mem.launch.planned_remedies import _collated, remedies_for
from forgather_mem.planning.result import Plan
from forgather_mem.system.procfs import own_memory
from forgather_mem.units import MIB
from tests.training import Bigrams, Tokens, make_trainer

pytestmark = pytest.mark.plans
ROWS, LENGTH = 256, 64
WIDE = 9_000_000  # over 32 MiB: never in the C library's heap, where what it has free by chance decides
BESIDE = 65_536


def trainer_of(folder: Path, **arguments: Any) -> Trainer:
    trainer = make_trainer(
        folder, **{"model": Bigrams(), "max_steps": 3, "per_device_train_batch_size": ROWS, **arguments}
    )
    trainer.train_dataset = Tokens(2 * ROWS, LENGTH)
    return trainer


def failed_in(plan: Plan, phase: str, **facts: Any) -> FailedTraining:
    """As if the largest allocation at this phase's highest moment had failed, with half of it free."""
    there = [one for one in plan.trace.requests() if (one.step, one.phase) == (2, phase)]
    highest = max(there, key=lambda one: one.before_bytes + one.size)
    known = FailedTraining(
        phase=phase, is_first_step=False, on_device=False, beside_bytes=BESIDE, rows=plan.rows, length=plan.length,
        limit_bytes=BESIDE + highest.before_bytes + highest.size // 2, requested_bytes=highest.size,
        taken_bytes=highest.before_bytes, sizes="", until_s=time.time() + 100,
    )  # fmt: skip
    return replace(known, **facts)


@pytest.mark.fresh
def test_a_plan_that_does_not_show_the_failure_is_not_used(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, eval_strategy="no")
    trainer.eval_dataset = None
    failed = failed_in(forgather_mem.plan(trainer), "backward")
    beyond: dict[str, Any] = {"limit_bytes": 4096 * MIB, "taken_bytes": None, "requested_bytes": None}
    for facts, problem in (
        ({"requested_bytes": 77 * MIB}, "the plan's backward asks nowhere for 77.0 MiB at once"),
        ({"taken_bytes": 900 * MIB}, "the plan has another amount in memory when it asks for "),
        ({"phase": "evaluate"}, "evaluate"),
        (beyond, "which would have fitted"),
    ):
        *_, answer = remedies_for(replace(failed, **facts), trainer)
        assert answer["changes"] == []
        assert problem in str(answer["problem"])


class Wide(Bigrams):
    """Its parameters are much larger than what is computed with them."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Parameter(torch.zeros(WIDE))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super().forward(input_ids, labels)
        return {**found, "loss": found["loss"] + self.wide.sum()}


@pytest.mark.fresh
def test_a_kill_before_the_first_step_is_in_the_first_phase_that_takes_what_there_was(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Wide(), max_steps=3, per_device_train_batch_size=2)
    left = 60 * MIB  # the parameters are 34 MiB, and the backward pass makes as much again
    began, own = own_memory().anonymous_bytes, sum(one.nbytes for one in trainer.model.parameters())
    killed = FailedTraining(
        phase="", is_first_step=True, on_device=False, limit_bytes=BESIDE + began - own + left, requested_bytes=None,
        taken_bytes=None, beside_bytes=BESIDE, rows=None, length=None, sizes="", until_s=time.time() + 100,
    )  # fmt: skip
    answer: Any = next(remedies_for(killed, trainer))
    assert (answer["killed"]["phase"], answer["killed"]["is_shown"]) == ("backward", True)


class Keeps(Bigrams):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super().forward(input_ids, labels)
        self.kept.append(found["logits"])
        return found


@pytest.mark.slow
def test_where_more_is_kept_of_each_step_no_smaller_batch_is_told_to_fit(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, model=Keeps(), max_steps=12)
    *_, answer = remedies_for(failed_in(forgather_mem.plan(trainer), "backward"), trainer)
    changes: Any = [*answer["changes"], *answer["too_large"]]
    assert [one["set"] for one in changes if "per_device_train_batch_size" in one["set"]] == [], answer


@pytest.mark.slow
def test_where_the_optimizer_is_too_large_no_batch_is_told_to_fit(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Wide(), max_steps=3, per_device_train_batch_size=2)
    plan = forgather_mem.plan(trainer)
    # The second state of the large tensor can't be made
    second = [one for one in plan.trace.requests() if one[:3] == (1, "optimizer", 4 * WIDE)][-1]
    limit = BESIDE + second.before_bytes + second.size // 2
    failed = failed_in(
        plan, "backward", is_first_step=True, taken_bytes=second.before_bytes, limit_bytes=limit,
        requested_bytes=4 * WIDE,
    )  # fmt: skip
    *_, answer = list[Any](remedies_for(replace(failed, phase="optimizer"), trainer))
    assert answer.get("changes"), answer
    assert all({"optim", "dtype"} & {*change["set"], *change.get("in_script", {})} for change in answer["changes"])


def test_rows_that_a_collator_does_not_join_are_planned_as_the_first() -> None:
    batch: Any = _collated(torch.stack, [torch.ones(5), torch.ones(3)])  # type: ignore[arg-type]
    assert batch.shape == (2, 5)
