"""A batch that is too long is told long before it comes, and the training is the same as without us."""

from __future__ import annotations

import pickle
import random
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forgather_mem.callbacks import MemoryAlert, OOMReporter
from forgather_mem.callbacks.memory_alert import Alert
from forgather_mem.diagnose.alerts.longest import LongestBatch
from tests.training import fingerprint

LONG = 1200
MIB = 2**20


def padded(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    return {"input_ids": tokens, "labels": tokens.clone()}


def trainer_of(folder: Path, callbacks: list[Any], longest: int = LONG) -> Trainer:
    chance = random.Random(3)
    data = [{"input_ids": [1] * chance.randrange(20, 100)} for _ in range(240)]
    data[100] = {"input_ids": [1] * longest}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2000,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LONG,
    )
    arguments = TrainingArguments(
        str(folder), num_train_epochs=1, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, seed=1,
    )  # fmt: skip
    return Trainer(LlamaForCausalLM(config), arguments, data_collator=padded, train_dataset=data, callbacks=callbacks)


def step_of_the_longest(folder: Path) -> int:
    """By looking at what the trainer's own loader gives."""
    torch.manual_seed(1)
    trainer = trainer_of(folder, [])
    steps: list[int] = []

    def looks(model: Any, inputs: Any, *more: Any) -> torch.Tensor:
        steps.append(inputs["input_ids"].shape[1])
        return torch.zeros(())

    trainer.training_step = looks
    trainer.train()
    return steps.index(LONG) + 1


@pytest.mark.fresh
def test_the_step_and_the_size_of_a_batch_that_is_too_long_are_told(tmp_path: Path) -> None:
    step = step_of_the_longest(tmp_path)
    alerts: list[Alert] = []
    trainer = trainer_of(tmp_path, [MemoryAlert({}, {}, 60, call=alerts.append), OOMReporter()])
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + 90 * MIB, resource.RLIM_INFINITY))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        trainer.train()
    (alert,) = alerts
    assert (alert.name, alert.step, alert.full_at_step) == ("longest batch", 16, step)
    assert trainer.state.global_step == step - 1
    # The logits, and their logarithms that the loss keeps; their gradient comes on top
    assert 2 * 8000 * 4 * LONG < alert.value < 6 * 8000 * 4 * LONG


@pytest.mark.fresh
def test_reading_the_order_changes_nothing(tmp_path: Path) -> None:
    found = []
    for callbacks in ([], [OOMReporter()]):
        torch.manual_seed(5)
        trainer = trainer_of(tmp_path, list(callbacks), longest=300)
        trainer.train()
        found.append(fingerprint(trainer))
    assert found[0] == found[1]


def test_a_copy_is_as_new() -> None:
    assert isinstance(pickle.loads(pickle.dumps(LongestBatch(dict))), LongestBatch)
