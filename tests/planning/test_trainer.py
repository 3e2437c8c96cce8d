"""Plans of a real Trainer against its real training."""

import copy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback

import forgather_mem
from forgather_mem.callbacks import SimpleGarbageCollector
from forgather_mem.errors import PlanError
from forgather_mem.planning.result import Plan
from tests.planning.counted import real_peak_bytes
from tests.training import Bigrams, Tokens, fingerprint, make_trainer

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        pytest.param({"optim": "adafactor"}, marks=pytest.mark.soak),
        {"gradient_accumulation_steps": 3},
        {"bf16": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        pytest.param({"max_grad_norm": 0.0, "optim": "sgd"}, marks=pytest.mark.soak),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_the_peak_is_that_of_the_training(tmp_path: Path, arguments: dict[str, Any]) -> None:
    trainer = make_trainer(tmp_path, max_steps=3, **arguments)
    planned = peak_of_steps(forgather_mem.plan(trainer))
    real = real_peak_bytes(trainer)
    assert 0.99 * real <= planned <= 1.02 * real


def peak_of_steps(plan: Plan) -> int:
    """Without the evaluation, which these trainings don't reach."""
    return max(phase.bytes for phase in plan.phases if phase.phase != "evaluate")


def test_a_training_after_a_plan_is_bit_identical(tmp_path: Path) -> None:
    plain, planned = make_trainer(tmp_path / "plain"), make_trainer(tmp_path / "planned")
    forgather_mem.plan(planned)
    plain.train()
    planned.train()
    assert fingerprint(planned) == fingerprint(plain)


class Unfreezes(TrainerCallback):
    def on_epoch_begin(self, _: object, state: Any, *given: object, model: Any, **keywords: object) -> None:
        model.get_input_embeddings().requires_grad_(state.epoch >= 1)


@pytest.mark.slow
def test_what_is_trained_from_a_later_epoch_on_is_planned(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [Unfreezes()], max_steps=-1, num_train_epochs=2)
    planned = peak_of_steps(forgather_mem.plan(trainer))
    assert 0.99 * (real := real_peak_bytes(trainer)) <= planned <= 1.02 * real


class Averages(TrainerCallback):
    """Keeps averaged weights."""

    def on_train_begin(self, *_: object, model: torch.nn.Module, **__: object) -> None:
        self.averaged = copy.deepcopy(model)

    def on_step_end(self, *given: object, model: torch.nn.Module, **keywords: object) -> None:
        for mine, own in zip(self.averaged.parameters(), model.parameters(), strict=True):
            mine.data.lerp_(own.data, 0.1)


class AveragesAtSteps(TrainerCallback):
    averaged: dict[str, torch.Tensor] | None = None

    def on_step_end(self, _: object, state: Any, *given: object, model: torch.nn.Module, **keywords: object) -> None:
        state.global_step = 10**6  # a copy
        weights = model.state_dict()
        self.averaged = {name: 0.9 * (self.averaged or weights)[name] + 0.1 * one for name, one in weights.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Averages, AveragesAtSteps])
def test_what_a_callback_of_the_users_keeps_is_planned(tmp_path: Path, kind: type[TrainerCallback]) -> None:
    callback = kind()
    trainer = make_trainer(tmp_path, [callback], max_steps=3)
    plan = forgather_mem.plan(trainer)
    assert plan.notes == ()
    assert getattr(callback, "averaged", None) is None
    assert plan.highest_parts()["callbacks"] >= 0.99 * plan.highest_parts()["parameters"]  # or but for buffers
    assert peak_of_steps(plan) == pytest.approx(real_peak_bytes(trainer), rel=0.01)


class KeepsGradients(TrainerCallback):
    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, *_: object, model: torch.nn.Module, **__: object) -> None:
        self.kept += [one.grad.clone() for one in model.parameters() if one.grad is not None]


@pytest.mark.slow
def test_what_a_callback_keeps_of_each_step_is_planned_to_the_end(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [KeepsGradients()], model=Bigrams(), max_steps=80)
    plan = forgather_mem.plan(trainer)
    assert plan.notes == ()
    assert peak_of_steps(plan) == pytest.approx(real_peak_bytes(trainer), rel=0.01)


class Writes(TrainerCallback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.path.touch()


class Starts(TrainerCallback):
    def on_step_end(self, *_: object, **__: object) -> None:
        subprocess.run(["true"], check=True)


class AsksForAValue(TrainerCallback):
    def on_step_end(self, *_: object, model: torch.nn.Module, **__: object) -> None:
        self.often = next(model.parameters()).flatten().long().bincount()


def test_a_callback_that_acts_or_needs_a_value_is_left_out_and_named(tmp_path: Path) -> None:
    made = [AsksForAValue(), Starts(), Writes(tmp_path / "new")]
    callbacks = [SimpleGarbageCollector(), EarlyStoppingCallback(), *made]
    plan = forgather_mem.plan(make_trainer(tmp_path, callbacks))
    assert not (tmp_path / "new").exists()
    asks, starts, writes = plan.notes
    assert asks.startswith("AsksForAValue is not in the plan: tests/planning/test_trainer.py:")
    assert "the size of what aten.bincount" in asks
    assert starts.startswith("Starts is not in the plan: tests/planning/test_trainer.py:")
    assert starts.endswith("PermissionError: subprocess.Popen 'true': a plan acts on nothing")
    assert writes.startswith("What tests/planning/test_trainer.py:")
    assert "(self.path.touch()) would do outside was not done (os." in writes


class SwapsForEvaluation(TrainerCallback):
    """Evaluates averaged weights, and goes on with its own."""

    def on_train_begin(self, *_: object, model: torch.nn.Module, **__: object) -> None:
        self.averaged = [one.detach().clone() for one in model.parameters()]

    def on_log(self, *_: object, logs: dict[str, float], **__: object) -> None:
        self.logged = f"{logs.get('loss', 0.0):.2f}"

    def on_evaluate(self, *_: object, model: torch.nn.Module, metrics: dict[str, float], **__: object) -> None:
        self.last = metrics["eval_loss"], [one.detach().clone() for one in model.parameters()]


class KeepsWhatIsSaved(TrainerCallback):
    def on_save(self, *_: object, model: torch.nn.Module, **__: object) -> None:
        self.saved = [one.detach().clone() for one in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("callback", "copies", "given"),
    [
        (SwapsForEvaluation, 2, {}),
        (KeepsWhatIsSaved, 1, {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}),
        (KeepsWhatIsSaved, 0, {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}),
    ],
)
def test_what_a_callback_keeps_between_steps_is_there_after_it(
    tmp_path: Path, callback: type[TrainerCallback], copies: int, given: dict[str, Any]
) -> None:
    arguments = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, **given}
    trainer = make_trainer(tmp_path, [callback()], per_device_eval_batch_size=32, **arguments)
    trainer.eval_dataset = trainer.train_dataset
    plan = forgather_mem.plan(trainer)
    assert plan.notes == ()
    assert plan.highest_parts().get("callbacks", 0) >= 0.99 * copies * plan.highest_parts()["parameters"]
    assert plan.peak_bytes == pytest.approx(real_peak_bytes(trainer), rel=0.01)


@pytest.mark.slow
def test_a_subclass_is_planned_with_what_it_does(tmp_path: Path) -> None:
    class Keeps(Trainer):
        def compute_loss(self, model: Any, inputs: Any, **keywords: Any) -> Any:
            self.kept = torch.zeros(2**20)
            return super().compute_loss(model, inputs, **keywords)

    trainer = make_trainer(tmp_path, trainer_class=Keeps)
    planned = forgather_mem.plan(trainer).peak_bytes
    assert planned > 2 * 2**22  # when the second is made, the first is still held
    assert planned == pytest.approx(real_peak_bytes(trainer), rel=0.01)


def test_the_second_step_has_the_optimizers_state(tmp_path: Path) -> None:
    plan = forgather_mem.plan(make_trainer(tmp_path, optim="adamw_torch"))
    forward = {row.step: row.parts for row in plan.phases if row.phase == "forward"}
    assert "optimizer" not in forward[1]
    assert forward[2]["optimizer"] == pytest.approx(2 * forward[2]["parameters"], rel=0.01)


@pytest.mark.slow
def test_batches_of_another_size_are_those_that_a_trainer_would_have(tmp_path: Path) -> None:
    other = forgather_mem.plan(make_trainer(tmp_path), rows=8)
    own = forgather_mem.plan(make_trainer(tmp_path, per_device_train_batch_size=8))
    assert (other.rows, other.peak_bytes) == (own.rows, own.peak_bytes) == (8, own.peak_bytes)


@pytest.mark.slow
def test_the_peak_of_padded_batches_has_the_mask_that_padding_needs(tmp_path: Path) -> None:
    def pad(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        length = max(len(row["input_ids"]) for row in rows)
        ids = torch.tensor([row["input_ids"] + [0] * (length - len(row["input_ids"])) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids}

    trainer = make_trainer(tmp_path, max_steps=3, per_device_train_batch_size=8)
    trainer.train_dataset = [{"input_ids": [1] * (8 if number % 2 else 64)} for number in range(64)]
    trainer.data_collator, trainer.args.remove_unused_columns = pad, False
    planned = forgather_mem.plan(trainer).peak_bytes
    assert 0.999 * (real := real_peak_bytes(trainer)) <= planned <= 1.01 * real


def rows_of_different_lengths() -> list[dict[str, list[int]]]:
    return [{"input_ids": [1 + number % 7] * (3 + number * 37 % 61)} for number in range(64)]


@pytest.mark.slow
@pytest.mark.parametrize(("each", "shuffles"), [(1, True), (2, True), (2, False)])
def test_the_batches_are_the_largest_of_those_that_come_in_order(tmp_path: Path, each: int, shuffles: bool) -> None:
    shapes: list[torch.Size] = []

    def pad(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
        shapes.append(ids.shape)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids}

    trainer = make_trainer(tmp_path, max_steps=4, seed=5, gradient_accumulation_steps=each)
    trainer.train_dataset, trainer.data_collator = rows_of_different_lengths(), pad
    trainer.args.remove_unused_columns = False
    if not shuffles:
        trainer.train_dataset = [{"input_ids": [1] * (9 + 5 * (number in (8, 20)))} for number in range(64)]
        trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(trainer.train_dataset)
    plan = forgather_mem.plan(trainer)
    shapes.clear()
    real = real_peak_bytes(trainer)
    longest = max(length for _, length in shapes[each : 4 * each])
    which = f"Batches are the largest of the {4 * each} that come in this order"
    assert plan.notes == (f"{which}: {longest} tokens.",)
    assert 0.995 * real <= peak_of_steps(plan) <= 1.015 * real


def joined(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    tokens = torch.tensor([[token for row in rows for token in row["input_ids"]]])
    return {"input_ids": tokens, "labels": tokens}


@pytest.mark.slow
def test_joined_rows_are_those_that_come_and_in_another_size_an_upper_bound(tmp_path: Path) -> None:
    def trainer() -> Trainer:
        made = make_trainer(tmp_path)
        made.train_dataset = [{"input_ids": [1] * (2 + number % 3)} for number in range(30)]
        made.data_collator, made.eval_dataset = joined, None
        return made

    plan = forgather_mem.plan(trainer())
    assert (plan.rows, plan.joined) == (1, 4)
    assert plan.notes[0].startswith("Batches are the largest of the ")
    other = forgather_mem.plan(trainer(), rows=4)
    assert (other.rows, other.length, other.joined) == (1, 16, 4)
    assert other.notes == ("Batches are of the longest rows, joined: an upper bound; others take less.",)
    assert str(other).startswith("Peak at most ")
    assert "batch 1 x 16 of 4 rows." in str(other)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
def test_a_larger_batch_of_joined_rows_joins_more(tmp_path: Path, rows: int) -> None:
    trainer = make_trainer(tmp_path, per_device_train_batch_size=rows)
    trainer.train_dataset, trainer.data_collator = [{"input_ids": [1] * 4}] * 32, joined
    plan = forgather_mem.plan(trainer, rows=6)
    assert (plan.rows, plan.length, plan.joined) == (1, 24, 6)
    assert not str(plan).startswith("Peak at "), "all batches are alike"


class OfTwoSizes(torch.utils.data.Sampler[list[int]]):
    """Many short rows, or few long ones."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], list(range(8)), [8, 9], [3, 4, 5, 6]])


@pytest.mark.slow
def test_of_a_sampler_that_makes_batches_of_any_size_the_largest_is_planned(tmp_path: Path) -> None:
    class Sampled(Trainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(self.train_dataset, batch_sampler=OfTwoSizes())  # type: ignore[arg-type]

    trainer = make_trainer(tmp_path, max_steps=4, trainer_class=Sampled)
    rows = [*[dict(Tokens(1, 24)[0])] * 8, *[dict(Tokens(1, 48)[0])] * 2]
    trainer.train_dataset = [{name: one.long() for name, one in row.items()} for row in rows]
    plan = forgather_mem.plan(trainer)
    assert (plan.rows, plan.length) == (8, 24)
    assert [note.partition(": ")[2] for note in plan.notes] == ["24 tokens."]
    assert plan.peak_bytes == pytest.approx(real_peak_bytes(trainer), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [48, *(pytest.param(rows, marks=pytest.mark.soak) for rows in (64, 32))])
def test_epochs_of_few_steps_have_the_peak_of_a_whole_one(tmp_path: Path, rows: int) -> None:
    trainer = make_trainer(tmp_path, max_steps=4, per_device_train_batch_size=16, gradient_accumulation_steps=2)
    trainer.train_dataset = Tokens(rows, 64)
    planned = forgather_mem.plan(trainer).peak_bytes
    assert 0.999 * (real := real_peak_bytes(trainer)) <= planned <= 1.01 * real


def test_deepspeed_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.is_deepspeed_enabled = True
    with pytest.raises(PlanError, match="DeepSpeed is not planned"):
        forgather_mem.plan(trainer)
