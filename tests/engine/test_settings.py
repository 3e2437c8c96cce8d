"""The settings that a report has: those that decide about memory, and nothing that is nobody's business."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forgather_mem.callbacks import MemoryCallback
from forgather_mem.engine.settings import settings_of_training
from forgather_mem.reporting.run_dir import run_report


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.arange(16), "labels": torch.arange(16)}


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1
    )
    arguments = TrainingArguments(
        str(folder), max_steps=3, per_device_train_batch_size=4, optim="adafactor", report_to=[], disable_tqdm=True,
        save_strategy="no", hub_token="hf_secret", use_cpu=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).bfloat16()
    Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[MemoryCallback()]).train()
    return dict(run_report(folder).run.settings)


def test_a_trainers_settings_stand_in_the_report_and_no_secret_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = trained(tmp_path, monkeypatch)
    wanted = {
        "arguments.optim": "adafactor", "arguments.per_device_train_batch_size": "4", "model.dtype": "bfloat16",
        "model.attn_implementation": "sdpa", "model.hidden_size": "16", "optimizer": "Adafactor",
        "environment.MALLOC_ARENA_MAX": "2", "threads": str(torch.get_num_threads()),
    }  # fmt: skip
    assert {name: settings.get(name) for name in wanted} == wanted
    assert "hf_secret" not in json.dumps(settings)
    assert "hf_secret" not in "".join(file.read_text() for file in tmp_path.rglob("*.jsonl"))


def test_of_a_plain_loop_model_and_optimizer_are_told_and_none_of_what_is_unknown() -> None:
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    settings = settings_of_training(SimpleNamespace(), model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    told = {name: value for name, value in settings.items() if name.startswith(("model", "optimizer"))}
    assert told == {
        "model.class": "Linear", "model.dtype": "float32", "model.parameters": "8", "model.trained_parameters": "6",
        "optimizer": "SGD", "optimizer.momentum": "0.9",
    }  # fmt: skip
    assert not any(name.startswith("arguments") for name in settings)
    assert not any(name.startswith("model") for name in settings_of_training(None, None, None))


def test_checkpointing_is_told_without_asking_the_property_that_warns(recwarn: pytest.WarningsRecorder) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert "model.gradient_checkpointing" not in settings_of_training(None, model, None)
    model[0].gradient_checkpointing = True
    assert settings_of_training(None, model, None)["model.gradient_checkpointing"] == "True"
    assert not recwarn.list
