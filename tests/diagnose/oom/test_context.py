"""The settings of a run as plain data."""

import gc
import json
import weakref
from dataclasses import asdict
from enum import Enum
from types import SimpleNamespace

import pytest
import torch

from forgather_mem.diagnose.oom.context import RunSettings, settings_of
from forgather_mem.engine.settings import ALLOCATOR_VARIABLES


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
    assert (settings.arguments["optim"], settings.arguments["bf16"]) == ("adamw_torch", True)
    assert (settings.has_metrics, settings.filters_logits, settings.can_checkpoint) == (True, False, True)


def test_nothing_of_the_training_is_kept() -> None:
    model = Net()
    watched = weakref.ref(model)
    settings = settings_of(SimpleNamespace(), model)
    del model
    gc.collect()
    assert watched() is None
    assert (settings.can_checkpoint, settings.dtype) == (True, "float32")


def test_a_size_that_is_not_known_is_the_default() -> None:
    settings = settings_of(SimpleNamespace(per_device_train_batch_size=4, gradient_accumulation_steps=None))
    assert settings.number("per_device_train_batch_size") == 4
    assert settings.number("gradient_accumulation_steps") == 1
    assert settings.number("dataloader_prefetch_factor", 2) == 2
    assert RunSettings(arguments={"loader.prefetch_factor": "16, 2"}).number("loader.prefetch_factor") == 16


def test_the_first_variable_of_the_allocator_that_is_set_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in reversed(ALLOCATOR_VARIABLES):
        monkeypatch.setenv(name, name.lower())
        assert settings_of(None).allocator_conf == name.lower()
