"""A real training of steps of about 17 ms, for measuring what happens in them."""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

STEP_S = 0.017
_TRIED_ROWS, _TRIED_STEPS = 8, 120


class Rows(torch.utils.data.Dataset):
    """As many rows as anybody wants."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.arange(index, index + 64) % 256
        return {"input_ids": row, "labels": row}


def tiny_model(hidden: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
    )  # fmt: skip
    return LlamaForCausalLM(config)


class _Clock(TrainerCallback):
    def __init__(self) -> None:
        self.began_s: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began_s.append(time.perf_counter())

    def median_s(self) -> float:
        return statistics.median(b - a for a, b in zip(self.began_s, self.began_s[1:], strict=False))


@functools.cache
def rows_a_step() -> int:
    """The batch size with which a step takes about 17 ms here and now: half of a step's time does not depend on it."""
    found = []
    for rows in (_TRIED_ROWS, 2 * _TRIED_ROWS):
        clock = _Clock()
        with tempfile.TemporaryDirectory() as folder:
            train(clock, _TRIED_STEPS, Path(folder), rows)
        found.append(clock.median_s())
    a_row_s = max((found[1] - found[0]) / _TRIED_ROWS, 1e-5)
    return max(1, round(_TRIED_ROWS + (STEP_S - found[0]) / a_row_s))


def train(callback: TrainerCallback, steps: int, folder: Path, rows: int | None = None) -> None:
    """Train for so many steps with this callback and no other that takes time.

    Args:
        callback: The one.
        steps: How many.
        folder: For what a trainer writes.
        rows: The batch size; None for steps of about 17 ms.
    """
    rows = rows_a_step() if rows is None else rows
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=rows, max_steps=steps, report_to=[],
        use_cpu=True, save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=tiny_model(64), args=arguments, train_dataset=Rows(), callbacks=[callback])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
