"""Planned evaluations against real ones, with all that they gather."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer
from transformers.modeling_outputs import CausalLMOutput

import forgather_mem
from forgather_mem.planning.result import PhasePlan, Plan
from tests.planning.counted import real_peak_bytes
from tests.training import VOCABULARY, Bigrams, Tokens, make_trainer

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]

ROWS, LENGTH = 203, 64
LOGITS_BYTES = ROWS * LENGTH * VOCABULARY * 4


def evaluating(folder: Path, rows: int = ROWS, **arguments: Any) -> Trainer:
    """A trainer that evaluates after its second step, with metrics of all logits."""
    settings = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8}
    trainer = make_trainer(folder, **{"model": Bigrams(), **settings, **arguments})
    trainer.eval_dataset = Tokens(rows, LENGTH)
    trainer.compute_metrics = lambda *_, **__: {"seen": 1.0}
    return trainer


def evaluation_of(plan: Plan) -> PhasePlan:
    return next(row for row in plan.phases if row.phase == "evaluate")


_WARNS = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        *({"rows": rows} for rows in (ROWS, 24, 5)),
        *(pytest.param({"rows": rows}, marks=pytest.mark.soak) for rows in (200, 11)),
        pytest.param({"eval_do_concat_batches": False}, marks=_WARNS),
        pytest.param({"batch_eval_metrics": True}, marks=_WARNS),
        pytest.param({"bf16": True}, marks=[_WARNS, pytest.mark.soak]),
    ],
    ids=str,
)
def test_the_peak_is_that_of_the_evaluation_however_it_gathers(tmp_path: Path, arguments: dict[str, Any]) -> None:
    trainer = evaluating(tmp_path, **arguments)
    plan = forgather_mem.plan(trainer)
    real = real_peak_bytes(trainer)
    assert 0.99 * real <= plan.peak_bytes <= 1.02 * real
    assert plan.notes == ()


class Wide(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4096, 8)

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(rows).mean()}


@pytest.mark.parametrize("accumulation", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_where_an_epoch_ends_no_batch_is_loaded_ahead(tmp_path: Path, accumulation: int) -> None:
    each = {"max_steps": -1, "gradient_accumulation_steps": accumulation, "per_device_eval_batch_size": 32}
    trainer = evaluating(tmp_path, model=Wide(), num_train_epochs=2, eval_strategy="epoch", **each)
    trainer.train_dataset = [{"rows": torch.ones(4096)}] * 48
    trainer.eval_dataset = [{"rows": torch.ones(4096)}] * 40
    trainer.compute_metrics = None
    plan = forgather_mem.plan(trainer)
    assert plan.phase == "evaluate"
    assert plan.peak_bytes == pytest.approx(real_peak_bytes(trainer), rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.soak), 5])
def test_what_is_moved_to_the_host_counts_there(tmp_path: Path, steps: int) -> None:
    trainer = evaluating(tmp_path, rows=603, per_device_eval_batch_size=32, eval_accumulation_steps=steps)
    plan = forgather_mem.plan(trainer)
    tracemalloc.start()
    try:
        real = real_peak_bytes(trainer)
    finally:
        tracemalloc.stop()
    assert plan.peak_bytes == pytest.approx(real, rel=0.02)


class Named(Bigrams):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.table(input_ids)
        return CausalLMOutput(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


def test_what_a_batch_gives_counts_once_where_the_loss_alone_is_gathered(tmp_path: Path) -> None:
    """A `ModelOutput` has each tensor as an item and as an attribute."""
    trainer = evaluating(tmp_path, model=Named(), per_device_eval_batch_size=32)
    trainer.compute_metrics = None
    plan = forgather_mem.plan(trainer)
    assert plan.peak_bytes == pytest.approx(real_peak_bytes(trainer), rel=0.01)
    assert plan.parts.get("results", 0) < 2**10
    assert "of tensors, evaluate, a later step, batch 32 x 64." in plan.text()


def test_a_device_and_the_host_are_told_apart(tmp_path: Path) -> None:
    own = forgather_mem.plan(evaluating(tmp_path), on_device=True)
    moved = forgather_mem.plan(evaluating(tmp_path, eval_accumulation_steps=4), on_device=True)
    assert own.peak_bytes > 2 * LOGITS_BYTES  # both copies, when the last batch is joined to all others
    assert LOGITS_BYTES <= own.host_bytes <= 1.1 * LOGITS_BYTES
    assert moved.peak_bytes < LOGITS_BYTES
    assert moved.host_bytes > 2 * LOGITS_BYTES


@pytest.mark.slow
def test_what_a_trainer_makes_of_its_logits_is_gathered_instead(tmp_path: Path) -> None:
    trainer = evaluating(tmp_path)
    trainer.preprocess_logits_for_metrics = lambda logits, _: logits.argmax(-1)
    planned = evaluation_of(forgather_mem.plan(trainer)).bytes
    assert planned < LOGITS_BYTES
    assert planned == pytest.approx(real_peak_bytes(trainer), rel=0.02)


@pytest.mark.slow
def test_the_largest_of_several_sets_counts(tmp_path: Path) -> None:
    trainer, one = evaluating(tmp_path), evaluating(tmp_path)
    trainer.eval_dataset = {"small": Tokens(16, LENGTH), "large": Tokens(ROWS, LENGTH)}
    several = evaluation_of(forgather_mem.plan(trainer)).parts["results"]
    assert several == pytest.approx(evaluation_of(forgather_mem.plan(one)).parts["results"], rel=0.01)


def test_no_evaluation_is_planned_where_there_will_be_none(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.eval_dataset = None
    assert {row.phase for row in forgather_mem.plan(trainer).phases} == {"data", "forward", "backward", "optimizer"}


def test_an_evaluation_that_needs_values_is_named_and_the_training_planned(tmp_path: Path) -> None:
    def chosen(logits: torch.Tensor, _: object) -> torch.Tensor:
        return logits.long().flatten().bincount()

    trainer = evaluating(tmp_path)
    trainer.preprocess_logits_for_metrics = chosen
    plan = forgather_mem.plan(trainer)
    assert plan.bound == "at least"
    (note,) = plan.notes
    assert note.startswith("The evaluation is not planned: ")
    assert "return logits.long().flatten().bincount()" in note
