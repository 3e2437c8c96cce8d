"""Run by test_ranks.py on each of two ranks: trains for real, and prints the most bytes of tensors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

from tests.planning.counted import Counted
from tests.training import VOCABULARY, Tokens, make_trainer


def trainer_of(folder: Path, **arguments: Any) -> Trainer:
    """Its gradients are a good part of the peak."""
    trainer = make_trainer(folder, max_steps=3, **arguments)
    trainer.model = trainer.model_wrapped = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2
        )
    )
    trainer.compute_metrics = lambda _: {"seen": 1.0}
    trainer.eval_dataset = Tokens(203, 64) if "eval_strategy" in arguments else None
    return trainer


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer = trainer_of(Path.cwd(), **json.loads(sys.argv[1]))
    with Counted(trainer.model) as counted:
        trainer.train()
    print("PEAK", counted.peak_bytes)
