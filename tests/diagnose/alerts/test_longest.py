"""A batch that is too long is told long before it comes, and the training is the same as without us."""

import contextlib
import dataclasses
import itertools
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forgather_mem.callbacks import MemoryAlert, OOMReporter
from forgather_mem.callbacks.memory_alert import Alert
from forgather_mem.loops.observed import ObservedLoop
from forgather_mem.loops.state import default_arguments
from tests.memory import load_blas
from tests.training import fingerprint

LONG = 1200
STEPS_SEEN = 20
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


def leave(free_bytes: int) -> None:
    """From here on this process can have no more than so much more."""
    load_blas()
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + free_bytes, resource.RLIM_INFINITY))


@pytest.mark.fresh
def test_the_step_and_the_size_of_a_batch_that_is_too_long_are_told(tmp_path: Path) -> None:
    step = step_of_the_longest(tmp_path)
    alerts: list[Alert] = []
    trainer = trainer_of(tmp_path, [MemoryAlert({}, {}, 60, call=alerts.append), OOMReporter()])
    leave(90 * MIB)
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


class Stream(IterableDataset[dict[str, list[int]]]):
    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        yield from ({"input_ids": [1] * (20 + number % 7)} for number in itertools.count())


def test_a_stream_has_no_batches_ahead_and_that_is_no_failure(tmp_path: Path) -> None:
    reporter, watched = OOMReporter(strict=True), trainer_of(tmp_path, [])
    arguments = dataclasses.replace(watched.args, max_steps=STEPS_SEEN)
    Trainer(watched.model, arguments, data_collator=padded, train_dataset=Stream(), callbacks=[reporter]).train()
    assert reporter.summary.steps == STEPS_SEEN
    assert reporter.summary.switched_off == []


def to_its_end(loader: DataLoader[Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in loader:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.state_dict()["state"][0]["step"] == STEPS_SEEN:
            raise KeyboardInterrupt


def with_a_break(loader: DataLoader[Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number, batch in enumerate(loader, 1):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == STEPS_SEEN:
            break


@pytest.mark.fresh
@pytest.mark.usefixtures("unfrozen")
@pytest.mark.parametrize(("loop", "steps"), [(to_its_end, [26]), (with_a_break, [])])
def test_a_plain_loop_is_told_where_nothing_says_that_it_may_stop_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Any, steps: list[int]
) -> None:
    monkeypatch.chdir(tmp_path)
    alerts: list[Alert] = []
    trainer = trainer_of(tmp_path, [])
    loader: Any = DataLoader(trainer.train_dataset, batch_size=4, collate_fn=padded)  # type: ignore[arg-type]
    model = trainer.model
    assert isinstance(model, torch.nn.Module)
    leave(60 * MIB)
    watching = ObservedLoop(default_arguments(), lambda: [OOMReporter(), MemoryAlert({}, {}, 60, call=alerts.append)])
    watching.listen()
    with contextlib.suppress(KeyboardInterrupt):
        loop(loader, model, torch.optim.AdamW(model.parameters()))
    watching.close()
    assert [alert.full_at_step for alert in alerts] == steps
