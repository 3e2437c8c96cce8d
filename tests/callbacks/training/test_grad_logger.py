"""Gradient norms in real trainings, against the Trainer's own and against norms taken by hand."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter
from transformers import Trainer, TrainerControl, TrainerState
from transformers.trainer_callback import CallbackHandler

from forgather_mem.callbacks import GradLogger
from forgather_mem.callbacks.training.grad_norms import GradientNorms
from tests.events import scalars, texts
from tests.training import make_trainer

LAYERS = ["model.embed_tokens", "model.layers.0", "model.norm", "lm_head"]


class NormsByHand(Trainer):
    """Keeps the layers' norms as they are behind the last backward of a step, in double precision."""

    by_hand: dict[int, dict[str, float]]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        self.by_hand = getattr(self, "by_hand", {})
        squares: dict[str, float] = {}
        for name, parameter in self.model.named_parameters():
            layer = next(layer for layer in LAYERS if name.startswith(layer + "."))
            squares[layer] = squares.get(layer, 0.0) + parameter.grad.double().square().sum().item()
        self.by_hand[self.state.global_step + 1] = {layer: math.sqrt(square) for layer, square in squares.items()}
        return loss


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("max_grad_norm", [0.1, 0.0])
def test_norms_are_those_before_clipping_and_equal_the_trainers_own(
    tmp_path: Path, accumulation: int, max_grad_norm: float
) -> None:
    trainer = make_trainer(
        tmp_path, [GradLogger(log_frequency=2)], trainer_class=NormsByHand, max_grad_norm=max_grad_norm,
        gradient_accumulation_steps=accumulation, rows=128,
    )  # fmt: skip
    trainer.train()
    found = scalars(tmp_path)
    own = {entry["step"]: entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry}
    if not own:  # transformers 4 has none when it does not clip
        assert not max_grad_norm
        own = {step: math.hypot(*trainer.by_hand[step].values()) for step in (2, 4, 6)}
    assert dict(found["grad_norm_total"]) == pytest.approx(own, rel=1e-5)
    assert list(own) == [2, 4, 6]
    for layer in LAYERS:
        expected = {step: trainer.by_hand[step][layer] for step in own}
        assert dict(found[f"grad_norm_layer/{layer}"]) == pytest.approx(expected, rel=1e-5)
    for tag, function in (("max", max), ("min", min), ("mean", lambda norms: sum(norms) / len(norms))):
        expected = {step: function(list(trainer.by_hand[step].values())) for step in own}
        assert dict(found[f"grad_norm_{tag}"]) == pytest.approx(expected, rel=1e-5)
    clipped = dict.fromkeys(own, 0.1) if max_grad_norm else own
    assert dict(found["grad_norm_clipped"]) == pytest.approx(clipped, rel=1e-3)


def test_the_flow_is_a_table_of_the_layers_in_the_models_order(tmp_path: Path) -> None:
    make_trainer(tmp_path, [GradLogger(log_frequency=1)], max_steps=11).train()
    found = texts(tmp_path)["grad_flow"]
    assert [step for step, _ in found] == [1, 11]
    rows = [line.split("|")[1:-1] for line in found[0][1].splitlines()[2:]]
    assert [row[1].strip() for row in rows] == LAYERS


def test_only_what_was_asked_for_gets_a_curve(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = GradLogger(None, 6, ["layers.0.mlp", "lm_head", "layers.1", "lm_haed"])
    make_trainer(tmp_path, [callback]).train()
    curves = [tag for tag in scalars(tmp_path) if tag.startswith("grad_norm_layer/")]
    assert curves == ["grad_norm_layer/model.layers.0.mlp", "grad_norm_layer/lm_head"]
    warned = [record.message for record in caplog.records if "no parameter" in record.message]
    assert len(warned) == 2
    assert "'lm_haed'; did you mean 'lm_head'?" in warned[1]


def test_forgathers_names_choose_parameters_one_by_one(tmp_path: Path) -> None:
    make_trainer(tmp_path, [GradLogger(neg_re="up_proj", pos_re="mlp", log_steps=6)]).train()
    assert [tag for tag in scalars(tmp_path) if tag.startswith("grad_norm_layer/")] == [
        "grad_norm_layer/model.layers.0.mlp.gate_proj.weight",
        "grad_norm_layer/model.layers.0.mlp.down_proj.weight",
    ]


class Altered(Trainer):
    """Multiplies the gradients of one layer, from some step on."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        layer, factor, from_step = self.model.altered
        if self.state.global_step + 1 >= from_step:
            for name, parameter in self.model.named_parameters():
                if name.startswith(layer) and parameter.grad is not None:
                    parameter.grad *= factor
        return loss


@pytest.mark.parametrize(
    ("altered", "steps", "message"),
    [
        (("model.layers.0", 1e-9, 1), 6, "step 3: gradients vanish in model.layers.0: norm 1"),
        (("model.norm", 1e9, 7), 8, "step 7: gradients explode in model.norm: norm "),
        (("model.layers.0", math.nan, 4), 4, "step 4: gradients are not finite in model.layers.0"),
        (("", math.inf, 4), 6, "step 4: gradients are not finite in any layer"),
        (("lm_head", 1e4, 1), 6, "is clipped to 1; most of it is in lm_head"),
    ],
)
def test_a_layer_whose_gradients_vanish_or_explode_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], altered: Any, steps: int, message: str
) -> None:
    trainer = make_trainer(tmp_path, [GradLogger(log_frequency=1)], trainer_class=Altered, max_steps=steps)
    trainer.model.altered = altered
    trainer.train()
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("gradients") == 1, said
    assert message in said
    ((_, text),) = texts(tmp_path)["grad_findings"]
    assert text in said


def test_a_callback_added_late_and_a_writer_handed_in(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "mine")) as writer:
        trainer = make_trainer(tmp_path / "run", max_grad_norm=0.1)
        trainer.add_callback(GradLogger(writer, 2, ["lm_head"]))
        trainer.train()
        writer.add_scalar("grad_norm_total", 1.0, 7)
    found = scalars(tmp_path)
    assert [step for step, _ in found["grad_norm_total"]] == [2, 4, 6, 7]
    assert all(norm > 0.5 for _, norm in found["grad_norm_total"])
    assert not list((tmp_path / "run").rglob("*tfevents*"))


def test_without_a_link_the_norms_are_the_optimizers_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tmp_path, max_grad_norm=0.5)  # its arguments and model, not its loop
    model, optimizer = trainer.model, torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    handler = CallbackHandler([GradLogger(log_frequency=1)], model, None, optimizer, None)
    state, control = TrainerState(), TrainerControl()
    handler.on_train_begin(trainer.args, state, control)
    tokens = torch.arange(8).reshape(1, 8)
    for step in range(1, 3):
        handler.on_step_begin(trainer.args, state, control)
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        handler.on_pre_optimizer_step(trainer.args, state, control)
        optimizer.step()
        handler.on_optimizer_step(trainer.args, state, control)
        optimizer.zero_grad()
        state.global_step = step
        handler.on_step_end(trainer.args, state, control)
    handler.on_train_end(trainer.args, state, control)
    found = scalars(tmp_path)
    assert dict(found["grad_norm_total"]) == pytest.approx({1: 0.5, 2: 0.5}, rel=1e-4)
    assert "grad_norm_clipped" not in found
    assert [record.message for record in caplog.records if "no link" in record.message] == [
        "GradLogger: no link to the trainer: norms are those after clipping to 0.5"
    ]


def test_with_sharded_parameters_the_trainers_own_total_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tmp_path, [GradLogger(log_frequency=2)])
    next(trainer.model.parameters()).ds_status = "NOT_AVAILABLE"  # as ZeRO 3 marks a parameter
    trainer.train()
    found = scalars(tmp_path)
    own = {entry["step"]: entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry}
    assert dict(found.pop("grad_norm_total")) == pytest.approx(own)
    assert not found
    assert len([record for record in caplog.records if "spread over ranks" in record.message]) == 1


def test_nothing_is_measured_at_steps_that_are_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reads = []
    original = GradientNorms.read
    monkeypatch.setattr(GradientNorms, "read", lambda self, scale=1.0: reads.append(1) or original(self, scale))
    with caplog.at_level(logging.WARNING):
        make_trainer(tmp_path, [GradLogger(log_frequency=4)]).train()
    assert len(reads) == 1
    assert not [record for record in caplog.records if record.name.startswith("forgather_mem")]
