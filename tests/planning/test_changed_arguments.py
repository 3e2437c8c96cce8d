"""A plan of other arguments is the plan of a trainer that has them."""

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import TrainingArguments

import forgather_mem
from forgather_mem import PlanError
from forgather_mem.planning.trainer import apply_changes
from tests.planning.compared import plain_step
from tests.training import make_trainer

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"gradient_checkpointing": True},
        {"optim": "adafactor"},
        pytest.param({"bf16": True}, marks=pytest.mark.soak),
        pytest.param({"gradient_accumulation_steps": 2}, marks=pytest.mark.soak),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_it_is_the_plan_of_a_trainer_made_so(tmp_path: Path, change: dict[str, Any]) -> None:
    other, own = make_trainer(tmp_path), make_trainer(tmp_path, **change)
    assert forgather_mem.plan(other, **change) == forgather_mem.plan(own)


OLD = {
    one.name: re.match(r"Deprecated alias of `(\w+)`", one.metadata.get("help", ""))
    for one in fields(TrainingArguments)
}


def test_an_argument_of_two_names_has_the_value_under_both(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    for old, new in [(old, found[1]) for old, found in OLD.items() if found is not None]:
        for name in (old, new):
            apply_changes(trainer, {name: {"given as": name}})
            assert getattr(trainer.args, old) == getattr(trainer.args, new) == {"given as": name}


def test_weights_of_half_the_bytes_have_gradients_and_states_of_half(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    own, half = (forgather_mem.plan(trainer, **how).highest_parts() for how in ({}, {"dtype": "bfloat16"}))
    for part in ("parameters", "gradients"):
        assert half[part] == own[part] / 2
    assert next(trainer.model.parameters()).dtype == torch.float32, "it is as before"


@pytest.mark.slow
def test_attention_is_the_models(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    if not hasattr(trainer.model, "set_attn_implementation"):  # of an old transformers
        with pytest.raises(PlanError, match="can't change attn_implementation"):
            forgather_mem.plan(trainer, attn_implementation="eager")
        return
    sdpa, eager = (forgather_mem.plan(trainer, attn_implementation=name).peak_bytes for name in ("sdpa", "eager"))
    assert sdpa < eager


def test_an_unknown_argument_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"no 'optimm'; did you mean 'optim'\?"):
        forgather_mem.plan(make_trainer(tmp_path), optimm="sgd")
    with pytest.raises(TypeError, match="only a Trainer has arguments"):
        forgather_mem.plan(print, nn.Linear(1, 1), None, torch.zeros(1), bf16=True)


def test_several_processes_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.args.distributed_state = SimpleNamespace(num_processes=4)
    with pytest.raises(PlanError, match="4 processes train together"):
        forgather_mem.plan(trainer)


def test_on_a_device_an_optimizer_makes_copies_of_all_tensors() -> None:
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters())
    step = plain_step(model, optimizer)

    def stepping(on_device: bool) -> int:
        plan = forgather_mem.plan(step, model, optimizer, torch.zeros(1, 64), on_device=on_device)
        row = next(row for row in plan.phases if (row.step, row.phase) == (2, "optimizer"))
        return row.bytes - row.parts.get("other tensors", 0)  # of other tests, on the host

    assert stepping(True) - stepping(False) >= 4.99 * 64 * 64 * 4  # some bytes of this process are the host's
