"""A real training of steps of about 17 ms, for measuring what happens in them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback


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


def train(callback: TrainerCallback, steps: int, folder: Path) -> None:
    """Train for so many steps with this callback and no other that takes time."""
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, max_steps=steps, report_to=[],
        use_cpu=True, save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=tiny_model(64), args=arguments, train_dataset=Rows(), callbacks=[callback])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
