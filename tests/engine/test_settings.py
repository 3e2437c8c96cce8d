"""The settings that a report has: those that decide about memory, and nothing that is nobody's business."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forgather_mem.callbacks import MemoryCallback
from forgather_mem.engine.settings import (
    settings_of_forward,
    settings_of_loaders,
    settings_of_others,
    settings_of_trainer,
    settings_of_training,
)
from forgather_mem.reporting.run_dir import run_report


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    made = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
    arguments = TrainingArguments(
        str(folder), max_steps=3, per_device_train_batch_size=4, optim="adafactor", report_to=[], disable_tqdm=True,
        save_strategy="no", hub_token="hf_secret", use_cpu=True,
    )  # fmt: skip
    model = LlamaForCausalLM(made).bfloat16()
    rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 40
    Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[MemoryCallback()]).train()
    return dict(run_report(folder).run.settings)


def test_a_trainers_settings_stand_in_the_report_and_no_secret_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = trained(tmp_path, monkeypatch)
    wanted = {
        "arguments.optim": "adafactor", "arguments.per_device_train_batch_size": "4", "model.dtype": "bfloat16",
        "model.attn_implementation": "sdpa", "model.hidden_size": "16", "optimizer": "Adafactor",
        "environment.MALLOC_ARENA_MAX": "2", "threads": str(torch.get_num_threads()), "loader.num_workers": "0",
        "forward.dtypes": "bfloat16, float32", "forward.attention": "ScaledDotProductFlashAttentionForCpu",
        "trainer.compute_metrics": "False", "callback.DefaultFlowCallback": "True",
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


def test_the_types_of_a_forward_pass_are_told_whoever_has_cast() -> None:
    model, rows = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), torch.ones(2, 4)
    assert settings_of_forward(model(rows)) == {"forward.dtypes": "float32"}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = {"loss": model(rows).float().sum(), "hidden": [rows]}
    assert settings_of_forward(outputs) == {"forward.dtypes": "bfloat16, float32"}
    with torch.no_grad():
        assert settings_of_forward((model(rows), None)) == {}


def test_a_kernel_of_attention_is_told_where_there_is_one() -> None:
    query = torch.ones(1, 1, 2, 4, requires_grad=True)
    fused = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert "ScaledDotProduct" in settings_of_forward(fused)["forward.attention"]
    assert "forward.attention" not in settings_of_forward((query @ query.mT).softmax(-1) @ query)


def test_the_loader_that_feeds_a_loop_is_told_also_by_its_iterator() -> None:
    loader = torch.utils.data.DataLoader([1, 2], batch_size=1)
    told = {"loader.num_workers": "0", "loader.pin_memory": "False", "loader.persistent_workers": "False"}
    assert settings_of_loaders([loader]) == settings_of_loaders([iter(loader)]) == told
    assert settings_of_loaders([None]) == {}


def test_other_models_are_told_with_the_bytes_of_their_parameters() -> None:
    trained, head, teacher = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), torch.nn.Sequential(torch.nn.Linear(8, 8))
    trained.tied = head  # type: ignore[assignment]
    optimizer = torch.optim.SGD([*trained.parameters(), *(beside := torch.nn.Linear(3, 3)).parameters()], lr=0.1)
    modules = [trained, *trained.children(), beside, teacher, *teacher.children(), torch.nn.ReLU()]
    told = {"other_models": "1 Sequential", "other_models.bytes": str((8 * 8 + 8) * 4)}
    assert settings_of_others(trained, optimizer, modules) == told
    assert settings_of_others(trained, optimizer, [trained, beside]) == {"other_models.bytes": "0"}


def test_of_what_a_trainer_was_given_only_names_are_told() -> None:
    trainer = SimpleNamespace(compute_metrics=len, preprocess_logits_for_metrics=None)
    told = settings_of_trainer(trainer, [SimpleNamespace()])
    assert {name: value for name, value in told.items() if name.startswith(("trainer.", "callback."))} == {
        "trainer.compute_metrics": "True", "trainer.preprocess_logits_for_metrics": "False",
        "callback.SimpleNamespace": "True",
    }  # fmt: skip
