"""Every YAML block of the documents loads, through the template language and as it stands, and does its work.

A block that is a part of something is completed by as little as possible: the table at the end says by what.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from forgather_mem import ConfigEnvironment, TrainingLoop, load_callbacks
from forgather_mem.callbacks import GradLogger, JsonLogger, MemoryCallback, TBLogger, TextgenCallback
from tests.events import scalars, texts
from tests.seeds.blocks import FOLDER, WHY_NOT, all_blocks
from tests.tokenizer import TextTrainer
from tests.training import make_trainer

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.usefixtures("folder_of_examples")]
# The fragments that use a writer don't define it; the document has defined it some blocks before.
A_WRITER = ".define: &summary_writer !singleton:torch.utils.tensorboard:SummaryWriter [ tb ]\n"


def construct(text: str, target: str) -> Any:
    environment = ConfigEnvironment(".", allow=["my_module"])
    return environment.load_from_string(text).construct(target)


def trained(callbacks: list[Any], **settings: Any) -> Trainer:
    defaults = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2, "trainer_class": TextTrainer}
    trainer = make_trainer(Path("out"), callbacks, **{**defaults, **settings})
    trainer.train()
    return trainer


def says_that_nothing_is_needed(text: str) -> None:
    assert ConfigEnvironment(".").load_from_string(text).targets == ()


def logs_to_tensorboard(text: str) -> None:
    (callback,) = construct(text, "trainer_callbacks")
    assert type(callback) is TBLogger
    trained([callback])
    callback.summary_writer.close()
    assert [step for step, _ in scalars(Path("runs/experiment_001"))["train-loss"]] == [2, 4, 6]
    assert "My Experiment" in texts(Path("runs"))["experiment"][0][1]


def keys_of_a_record() -> list[str]:
    """Those of the record that the document shows; it is no JSON, since it has dots in a place."""
    (shown,) = re.findall(r"^```json\n(.*?)^```$", next(FOLDER.glob("003*")).read_text(), re.M | re.S)
    return re.findall(r'^ {4}"(\w+)":', shown, re.M)


def logs_to_json(text: str) -> None:
    (callback,) = construct(text, "trainer_callbacks")
    assert type(callback) is JsonLogger
    trained([callback])
    records = json.loads(callback.path.read_text())
    assert [record["global_step"] for record in records if "loss" in record["metrics"]] == [2, 4, 6]
    assert [list(record) for record in records[1:]] == [keys_of_a_record()] * (len(records) - 1)
    assert records[0]["meta"]["name"] == "My Experiment"
    assert "JsonLogger" in records[0]["meta"]["config"], "the template, with its variables in place"


def generates_text(text: str) -> None:
    (callback,) = construct(text, "trainer_callbacks")
    assert type(callback) is TextgenCallback
    assert (len(callback.prompts), callback.generation_steps) == (3, 1000)
    assert callback.generation_config == {"do_sample": True, "max_new_tokens": 50, "temperature": 0.7, "top_p": 0.9}
    trained([callback])


class Encoder(torch.nn.Module):
    """Has the layers that the document names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(12))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            rows = rows + layer(rows)
        return rows


def logs_gradients(text: str) -> None:
    (callback,) = construct(text, "trainer_callbacks")
    assert type(callback) is GradLogger
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters())
    loop = TrainingLoop(model, optimizer, callbacks=[callback])
    with loop.train(), loop.epoch():
        for rows in torch.randn(100, 4, 8):
            with loop.step():
                model(rows).square().mean().backward()
                norms = [parameter.grad.norm() for parameter in model.parameters()]
                optimizer.step()
                optimizer.zero_grad()
    callback.summary_writer.close()
    points = scalars(Path("tb"))
    layers = {tag for tag in points if tag.startswith("grad_norm_layer/")}
    assert layers == {"grad_norm_layer/layer.0", "grad_norm_layer/layer.11"}
    for name in ("total", "max", "min", "mean"):
        assert [step for step, _ in points[f"grad_norm_{name}"]] == [100]
    assert points["grad_norm_total"][0][1] == pytest.approx(torch.stack(norms).norm().item(), rel=1e-5)


def takes_callbacks_of_a_users_module(text: str) -> None:
    checkpoint, stopping = construct(text, "trainer_callbacks")
    assert (type(checkpoint).__module__, type(stopping).__name__) == ("my_module.callbacks", "EarlyStoppingCallback")
    assert stopping.patience == 3
    trainer = trained([checkpoint, stopping])
    best = json.loads(Path("best_models/best/metrics.json").read_text())
    assert best["eval_loss"] == min(log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log)


def switches_monitoring(text: str, *, monitored: bool) -> None:
    parameters = construct(text, "trainer_params")
    callbacks = load_callbacks("trainers/with_memory.yaml", trainer_params=parameters)
    assert [type(callback) for callback in callbacks] == [MemoryCallback] * monitored
    assert not monitored or callbacks[0].monitor.verbose_batches == 5


@dataclass(frozen=True)
class Case:
    """How one block is tried, and what stands before it."""

    check: Callable[[str], None]
    before: str = ""


CASES = {
    "003 yaml 1": Case(says_that_nothing_is_needed),
    "003 yaml 2": Case(says_that_nothing_is_needed),
    "003 yaml 3": Case(logs_to_tensorboard),
    "003 yaml 4": Case(logs_to_json),
    "003 yaml 5": Case(generates_text, A_WRITER),
    "003 yaml 6": Case(logs_gradients, A_WRITER),
    "003 yaml 7": Case(takes_callbacks_of_a_users_module),
    "004 yaml 1": Case(lambda text: switches_monitoring(text, monitored=True)),
    "004 yaml 2": Case(lambda text: switches_monitoring(text, monitored=True)),
    "004 yaml 3": Case(lambda text: switches_monitoring(text, monitored=False)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_block_loads_and_does_its_work(name: str) -> None:
    CASES[name].check(CASES[name].before + all_blocks()[name])


def test_no_block_is_left_out() -> None:
    assert {name for name in all_blocks() if "yaml" in name} == CASES.keys()
