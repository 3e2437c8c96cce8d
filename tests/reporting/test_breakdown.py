"""What a report says was in memory, against trainings whose sizes are known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from forgather_mem import attach
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.engine.summary import RunSummary
from forgather_mem.reporting.build import build_report
from forgather_mem.reporting.table import parts_sentences
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.records import Sample
from forgather_mem.units import GIB, MIB
from tests.callbacks.test_memory_callback import Training
from tests.events import texts
from tests.reporting.report_fixtures import built
from tests.simulated_device import SimulatedDevice

SIZE = 2048


class Wide(torch.nn.Module):
    """16 MiB of parameters, and for each row of a batch 8 MiB of activations that the backward pass needs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((SIZE, SIZE), 1e-3))

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace | dict[str, torch.Tensor]:
        hidden = rows @ self.weight  # batch, SIZE
        wide = hidden[:, None, :].expand(-1, 512, -1).sin()  # 4 MiB a row
        loss = wide.exp().mean()  # 4 MiB a row that it keeps
        return {"loss": loss + 0 * labels.sum()}


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"rows": torch.full((SIZE,), index / 64), "labels": torch.zeros(1)}


def train(folder: Path, batch_size: int, micro_batches: int) -> Any:
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=batch_size, gradient_accumulation_steps=micro_batches,
        max_steps=12, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=Wide(), args=arguments, train_dataset=Rows())
    watched = attach(trainer)
    trainer.train()
    return watched.report()


@pytest.mark.slow
@pytest.mark.fresh
def test_on_the_host_each_part_is_about_what_the_model_is_made_of(tmp_path: Path) -> None:
    report = train(tmp_path, batch_size=8, micro_batches=1)
    parts = report["breakdown"]
    assert parts["parameters"] == parts["gradients"] == SIZE * SIZE * 4
    assert parts["optimizer"] == pytest.approx(2 * SIZE * SIZE * 4, rel=0.01)
    # 8 rows of 8 MiB are kept for the backward pass, whose own intermediates come on top
    assert 0.8 * 64 * MIB < parts["activations_peak"] < 2.2 * 64 * MIB
    # the optimizer's state is made in the first step
    assert report["host"]["rss_end_bytes"] - report["host"]["rss_start_bytes"] > 30 * MIB
    assert sum(parts.values()) == pytest.approx(report["host"]["rss_peak_bytes"], rel=0.05)
    (_, page), *_ = texts(tmp_path)["mem_report/verdict"]
    assert "What was in the memory of the host" in page
    assert "| parameters | 16.0 MiB |" in page


@pytest.mark.fresh
def test_activations_that_stay_resident_when_they_are_freed_are_found_too(tmp_path: Path) -> None:
    """Tensors of some 100 KiB come from the heap, which keeps what is freed: the passes raise nothing later on."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from forgather_mem.demo import StdlibText

    torch.manual_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4}
    model, data = LlamaForCausalLM(LlamaConfig(vocab_size=256, **shape)), StdlibText(num_bytes=20_000, block_size=128)
    saved: dict[int, int] = {}

    def look(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = torch.stack([torch.as_tensor(data[index]["input_ids"]) for index in range(8)])
    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        output = model(input_ids=rows, labels=rows)
    needed = sum(saved.values()) - sum(parameter.nbytes for parameter in model.parameters())
    del output
    arguments = TrainingArguments(
        str(tmp_path), max_steps=12, per_device_train_batch_size=8, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    watched = attach(trainer)
    trainer.train()
    found = watched.report()["breakdown"]["activations_peak"]
    assert 0.4 * needed < found < 2 * needed + 30 * MIB


def test_on_a_device_each_part_is_what_was_allocated_for_it(tmp_path: Path, device: SimulatedDevice) -> None:
    model = Wide()
    optimizer = torch.optim.AdamW(model.parameters())
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    callback = MemoryCallback(sinks=[Capture()], strict=True)
    device.hold(16 + 32 + 7)  # parameters, optimizer, and what the script keeps
    training = Training(callback, device, tmp_path)
    for _ in range(12):
        callback.on_pre_optimizer_step(training.args, training.state, None, model=model, optimizer=optimizer)
        training.step(forward=64, backward=70, optimizer=20)
    device.hold(16 + 32 + 7)
    training.fire("train_end")
    parts = built(callback.summary)["breakdown"]
    assert {part: round(size / MIB) for part, size in parts.items()} == {
        "parameters": 16, "gradients": 16, "optimizer": 32, "activations_peak": 64, "cached": 70, "other": 7,
    }  # fmt: skip


def test_the_parts_of_a_training_on_two_devices_are_those_of_both() -> None:
    summary = RunSummary()
    summary.begin(0)
    values = {
        "device/allocated_bytes": 4.0 * GIB,
        "device/reserved_bytes": 5.0 * GIB,
        "device/step_peak_bytes": 6.0 * GIB,
        "device1/allocated_bytes": 3.0 * GIB,
        "device1/reserved_bytes": 3.5 * GIB,
        "tensors/parameters_bytes": 6.5 * GIB,
    }
    summary.add(Sample("step_end", 1, None, 0.0, values, 0))
    report = build_report(summary)
    parts = report.breakdown
    assert (parts.parameters, parts.cached, parts.other) == (6.5 * GIB, 1.5 * GIB, 2.5 * GIB)
    assert next(parts_sentences(report)).startswith("6.5 GiB parameters, 2.5 GiB other; each at its own peak, on 2 ")
