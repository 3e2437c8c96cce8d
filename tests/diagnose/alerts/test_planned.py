"""What a plan beside the training tells early, and that the training is the same without it."""

import itertools
import math
import os
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from forgather_mem import plan
from forgather_mem.callbacks import MemoryAlert, OOMReporter
from forgather_mem.callbacks.memory_alert import Alert
from forgather_mem.diagnose.alerts import planned
from tests.memory import load_blas
from tests.simulated_device import TOTAL_MIB, simulated_device
from tests.training import fingerprint

LONG = 1200
STEPS = 30
MIB = 2**20

pytestmark = pytest.mark.fresh


@pytest.fixture(autouse=True)
def waits_for_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """These trainings end before it comes."""
    monkeypatch.setattr(planned, "_WHEN", planned._WHEN._replace(budget_frac=math.inf, patience_s=120.0))


def padded(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    return {"input_ids": tokens, "labels": tokens.clone()}


def trainer_of(folder: Path, callbacks: list[Any], *, longest: int = LONG, at: int = 100, **settings: Any) -> Trainer:
    chance = random.Random(3)
    data = [{"input_ids": [1] * chance.randrange(20, 100)} for _ in range(4 * STEPS)]
    data[at] = {"input_ids": [1] * longest}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2000, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=LONG,
    )  # fmt: skip
    arguments = TrainingArguments(
        str(folder), num_train_epochs=1, per_device_train_batch_size=4, per_device_eval_batch_size=4, use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True, seed=1, **settings,
    )  # fmt: skip
    return Trainer(
        LlamaForCausalLM(config), arguments, data_collator=padded, train_dataset=data, eval_dataset=data[:40] * 10,
        callbacks=callbacks,
    )  # fmt: skip


def leave(free_bytes: int) -> None:
    """From here on this process can have no more than so much more."""
    load_blas()
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + free_bytes, resource.RLIM_INFINITY))


def told_of(folder: Path, **settings: Any) -> list[Alert]:
    alerts: list[Alert] = []
    trainer_of(folder, [MemoryAlert({}, {}, 60, call=alerts.append), OOMReporter()], **settings).train()
    return alerts


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.slow
def test_the_size_of_a_batch_that_is_too_long_is_told(tmp_path: Path) -> None:
    alerts: list[Alert] = []
    trainer = trainer_of(tmp_path, [MemoryAlert({}, {}, 60, call=alerts.append), OOMReporter()])
    leave(90 * MIB)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        trainer.train()
    (alert,) = alerts
    assert (alert.name, alert.step, alert.full_at_step) == ("longest batch", 2, None)
    assert f"the longest batch (4 x {LONG:,} tokens) needs" in alert.text
    # The logits, and their logarithms that the loss keeps; their gradient comes on top
    assert 2 * 8000 * 4 * LONG < alert.value < 6 * 8000 * 4 * LONG


@pytest.mark.slow
def test_an_evaluation_that_keeps_too_much_is_told_before_it_begins(tmp_path: Path) -> None:
    alerts: list[Alert] = []
    evaluates = {"eval_strategy": "steps", "eval_steps": 10, "max_steps": 20}
    trainer = trainer_of(tmp_path, [MemoryAlert({}, {}, 60, call=alerts.append)], longest=100, **evaluates)
    trainer.compute_metrics = lambda predicted: {}
    leave(200 * MIB)
    with pytest.raises((RuntimeError, MemoryError)):
        trainer.train()
    (alert,) = alerts
    assert (alert.name, alert.step, alert.full_at_step) == ("evaluation", 2, 10)
    # All logits, padded to the longest row, twice while the last are joined with those before
    assert alert.value == pytest.approx(2 * 400 * 100 * 8000, rel=0.1)
    assert "preprocess_logits_for_metrics" in alert.text


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"longest": 300}, {"longest": LONG, "max_steps": 10}])
def test_nothing_is_told_of_what_fits_or_never_comes(tmp_path: Path, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    leave(90 * MIB)
    assert told_of(tmp_path, **settings) == []


@pytest.mark.slow
def test_the_training_is_the_same_and_no_process_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for patience_s in (None, 120.0, 0.0):
        if patience_s is not None:
            monkeypatch.setattr(planned, "_WHEN", planned._WHEN._replace(patience_s=patience_s))
        torch.manual_seed(5)
        callbacks = [] if patience_s is None else [OOMReporter(strict=True)]
        trainer = trainer_of(tmp_path, callbacks, longest=300, max_steps=10)
        trainer.train()
        found.append(fingerprint(trainer))
    assert found[0] == found[1] == found[2]
    assert children() == []


@pytest.mark.parametrize(("needed_at", "of_child"), [(3, ["1000"]), (0, [])])
def test_the_child_is_killed_first_and_ends_or_is_not_made_where_steps_need_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed_at: int, of_child: list[str]
) -> None:
    seen: list[list[str]] = []

    class Looks(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            scores = [Path(f"/proc/{pid}/oom_score_adj") for pid in children()]
            until = time.monotonic() + 20
            while any(score.read_text().strip() == "0" for score in scores) and time.monotonic() < until:
                time.sleep(0.01)  # it sets it itself
            seen.append([score.read_text().strip() for score in scores])
            own_bytes = 2**60 * (len(seen) >= needed_at)
            monkeypatch.setattr(planned, "_WHEN", planned._WHEN._replace(own_bytes=own_bytes, patience_s=0.0))

    Looks().on_step_end()
    trainer_of(tmp_path, [OOMReporter(strict=True), Looks()], max_steps=5).train()
    assert seen[2:] == [of_child, [], [], []]


class Stream(IterableDataset[dict[str, list[int]]]):
    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        yield from ({"input_ids": [1] * (20 + number % 7)} for number in itertools.count())


def test_a_stream_has_no_batches_ahead_and_that_is_no_failure(tmp_path: Path) -> None:
    reporter = OOMReporter(strict=True)
    trainer = trainer_of(tmp_path, [reporter], max_steps=6)
    trainer.train_dataset = Stream()
    trainer.train()
    assert reporter.summary.steps == 6
    assert reporter.summary.switched_off == []


@pytest.mark.slow
def test_on_a_device_the_plan_made_before_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alerts: list[Alert] = []
    evaluates = {"eval_strategy": "steps", "eval_steps": 4, "max_steps": 4}
    trainer = trainer_of(tmp_path, [MemoryAlert({}, {}, 60, call=alerts.append)], longest=100, **evaluates)
    trainer.compute_metrics = lambda predicted: {}
    trainer.eval_dataset = trainer.eval_dataset[:80]  # type: ignore[index]
    results = plan(trainer, on_device=True).parts["results"]
    with simulated_device(monkeypatch) as device:
        device.hold(10)
        device.others = TOTAL_MIB - 40
        trainer.train()
    (alert,) = alerts
    assert (alert.name, alert.step, alert.full_at_step, alert.limit) == ("evaluation", 2, 4, 30 * MIB)
    assert alert.value == pytest.approx(results, rel=0.1)
