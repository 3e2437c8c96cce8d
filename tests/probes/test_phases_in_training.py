"""Known amounts of memory in every phase of a real training, and the peaks that are found for them."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from forgather_mem import Every, Rule
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.probes import PhaseProbe
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.triggers import AtEvent
from forgather_mem.units import MIB
from tests.memory import spike, status_bytes

PHASES = ("data", "forward", "backward", "optimizer", "evaluate", "save")
SIZES_MIB = (1, 8, 64, 128)


class Spikes:
    """Makes each phase's spike, and notes how high memory must have gone by it."""

    def __init__(self, mib_of: dict[str, int]) -> None:
        self.mib_of = mib_of
        self.expected: dict[str, list[int]] = defaultdict(list)

    def make(self, phase: str) -> None:
        self.expected[phase].append(status_bytes("VmRSS") + self.mib_of[phase] * MIB)
        spike(self.mib_of[phase])


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, spikes: Spikes) -> torch.Tensor:
        ctx.spikes = spikes
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.spikes.make("backward")
        return gradient, None


class Model(torch.nn.Module):
    def __init__(self, spikes: Spikes) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.spikes = spikes

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.spikes.make("forward" if self.training else "evaluate")
        out = InBackward.apply(self.layer(x), self.spikes)
        return {"loss": out.pow(2).mean(), "logits": out}


class Optimizer(torch.optim.SGD):
    spikes: Spikes

    def step(self, closure: Any = None) -> Any:
        self.spikes.make("optimizer")
        return super().step(closure)


class Saves(Trainer):
    spikes: Spikes

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        self.spikes.make("save")
        super()._save(output_dir, state_dict)


@pytest.mark.parametrize("turn", range(len(SIZES_MIB)))
def test_each_size_in_each_phase_of_a_real_training_is_found_within_one_mib(tmp_path: Path, turn: int) -> None:
    mib_of = {phase: SIZES_MIB[(turn + number) % len(SIZES_MIB)] for number, phase in enumerate(PHASES)}
    spikes, capture = Spikes(mib_of), Capture()
    model = Model(spikes)
    optimizer = Optimizer(model.parameters(), lr=0.1)
    optimizer.spikes = spikes
    training = True

    def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        if training:
            spikes.make("data")
        return {"x": torch.stack([row["x"] for row in rows]), "labels": torch.zeros(len(rows))}

    class Tells(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            nonlocal training
            training = not args[2].should_evaluate

        def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
            nonlocal training
            training = True

    phases = PhaseProbe(host_mark=True, budget_frac=1)
    callback = MemoryCallback(
        rules=[Rule(when=Every(steps=1), do=[phases]), Rule(when=AtEvent("train_end"), do=[phases])],
        sinks=[capture],
        strict=True,
    )
    trainer = Saves(
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True,
            gradient_accumulation_steps=3, eval_strategy="steps", eval_steps=2,
            save_strategy="steps", save_steps=2, disable_tqdm=True, dataloader_pin_memory=False,
        ),
        train_dataset=[{"x": torch.ones(4)}] * 64,
        eval_dataset=[{"x": torch.ones(4)}] * 2,
        data_collator=collate,
        optimizers=(optimizer, None),
        callbacks=[Tells(), callback],
    )  # fmt: skip
    trainer.spikes = spikes
    trainer.train()

    found: dict[str, list[float]] = defaultdict(list)
    for sample in capture.samples:
        for name, value in sample.values.items():
            found[name.removeprefix("phase/host/").removesuffix("_peak_bytes")].append(value)
    for phase, mib in mib_of.items():
        expected = max(spikes.expected[phase])
        assert max(found[phase]) == pytest.approx(expected, abs=MIB), f"{mib} MiB in {phase}"
    assert len(found["forward"]) == 3, "one value a step, whatever the number of micro-batches"
