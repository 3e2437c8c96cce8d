"""The settings of a run as plain data; how large an optimizer's state is, is in `test_optimizer_sizes`."""

import gc
import json
import sys
import weakref
from dataclasses import asdict
from enum import Enum
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers.training_args import OptimizerNames

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import RunSettings, dtype_argument, settings_of, takes_optimizer
from forgather_mem.engine.settings import ALLOCATOR_VARIABLES
from tests.diagnose.oom.failures import failure_of
from tests.diagnose.oom.test_advice import failed, settings, texts


class Optim(Enum):
    ADAMW = "adamw_torch"


class Net(torch.nn.Module):
    supports_gradient_checkpointing = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(10, 20, bias=False), torch.nn.Linear(20, 10, bias=False).half()
        self.tied = torch.nn.Linear(10, 20, bias=False)
        self.tied.weight = self.first.weight
        self.second.weight.requires_grad_(False)


@pytest.fixture(autouse=True)
def _no_settings_of_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_the_settings_are_plain_data_of_what_is_trained() -> None:
    args = SimpleNamespace(optim=Optim.ADAMW, bf16=True, save_strategy=object(), learning_rate=0.1)
    trainer = SimpleNamespace(compute_metrics=print, preprocess_logits_for_metrics=None)
    settings = settings_of(args, Net(), trainer)
    assert json.loads(json.dumps(asdict(settings))) == asdict(settings)
    assert set(settings.arguments) == {"optim", "bf16", "save_strategy"}, "those that affect memory"
    assert (settings.optim, settings.arguments["bf16"]) == ("adamw_torch", True)
    assert (settings.has_metrics, settings.filters_logits, settings.can_checkpoint) == (True, False, True)
    assert (settings.trained_numbers, settings.trained_bytes, settings.largest_trained) == (200, 800, 200)


def test_nothing_of_the_training_is_kept() -> None:
    model = Net()
    watched = weakref.ref(model)
    settings = settings_of(SimpleNamespace(), model)
    del model
    gc.collect()
    assert watched() is None
    assert settings.trained_numbers == 200


def test_what_is_not_known_is_none() -> None:
    settings = settings_of(None)
    assert (settings.trained_numbers, settings.trained_bytes, settings.largest_trained) == (None, None, None)
    assert (settings.optim, settings.state_of("adamw_torch"), settings.state_of("no such")) == ("", None, None)
    failure = failure_of(where="host", phase="forward", step=1, used_bytes=5)
    assert failure.capacity_bytes is None
    assert failure_of(where="host", phase="forward", step=1, used_bytes=5, free_bytes=7).capacity_bytes == 12


def test_the_first_variable_of_the_allocator_that_is_set_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in reversed(ALLOCATOR_VARIABLES):
        monkeypatch.setenv(name, name.lower())
        assert settings_of(None).allocator_conf == name.lower()


def test_the_state_of_an_optimizer_is_that_of_its_kind() -> None:
    settings = RunSettings(trained_bytes=100, state_bytes={"adamw": 150, "adafactor": 7})
    assert settings.state_of("adamw_torch_fused") == 150
    assert RunSettings(trained_bytes=100).state_of("adamw_torch") == 200
    assert settings.state_of("adafactor") == 7


def test_settings_are_plain_and_know_the_models_tensors() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Linear(50, 10))
    model[1].weight.requires_grad_(False)
    args = SimpleNamespace(per_device_train_batch_size=4, optim=SimpleNamespace(value="adamw_torch"), other=object())
    found = settings_of(args, model, SimpleNamespace(compute_metrics=print, preprocess_logits_for_metrics=None))
    assert found.arguments == {"per_device_train_batch_size": 4, "optim": "adamw_torch"}
    assert (found.trained_numbers, found.trained_bytes, found.largest_trained) == (5060, 4 * 5060, 5000)
    assert found.state_bytes["adafactor"] == 4 * (100 + 50) + 4 * 50 + 4 * 10
    assert (found.has_metrics, found.filters_logits, found.can_checkpoint) == (True, False, False)


@pytest.mark.parametrize(
    ("version", "name"),
    [("4.46.3", "torch_dtype"), ("4.55.4", "torch_dtype"), ("4.56.0", "dtype"), ("5.23.0", "dtype")],
)
def test_weights_get_their_type_by_the_argument_that_there_is(
    monkeypatch: pytest.MonkeyPatch, version: str, name: str
) -> None:
    transformers = ModuleType("transformers")
    transformers.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    text = f"from_pretrained(..., {name}=torch.bfloat16)"
    assert texts(advise(failed("startup", frames=("from_pretrained",)), settings()))[0].endswith(text)
    assert any(told.endswith(text) for told in texts(advise(failed("optimizer"), settings())))
    monkeypatch.delitem(sys.modules, "transformers")
    assert dtype_argument() == "dtype"


def test_an_optimizer_is_one_of_those_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(takes_optimizer(known.value) for known in OptimizerNames)
    assert not takes_optimizer("adamw_of_tomorrow")
    monkeypatch.delitem(sys.modules, "transformers.training_args")
    assert takes_optimizer("adamw_of_tomorrow")
