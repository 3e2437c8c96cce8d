"""A trainer as libraries derive it (TRL's are): a loss and log lines of its own. One line watches it, unchanged.

    python examples/trl_like_trainer.py [OUTPUT_DIR]

What it logs, its own numbers among it, goes to `trainer_logs.json`.
"""

import json
import sys
from collections import defaultdict

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forgather_mem import attach
from forgather_mem.callbacks import JsonLogger
from forgather_mem.demo import StdlibText


class RewardTrainer(Trainer):
    """Weighs a row's loss by how well the model did on it, and logs the mean of these rewards."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.collected = defaultdict(list)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"])
        logits, labels = outputs.logits[:, :-1], inputs["labels"][:, 1:]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(1)
        rewards = -losses.detach()
        self.collected["rewards/mean"].append(rewards.mean().item())
        loss = (losses * torch.softmax(-rewards, 0)).sum()
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        means = {name: sum(values) / len(values) for name, values in self.collected.items()}
        self.collected.clear()
        super().log({**logs, **means}, *args, **kwargs)


def main(output_dir):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    arguments = TrainingArguments(
        output_dir, max_steps=6, logging_steps=2, save_strategy="no", report_to=[], disable_tqdm=True
    )
    trainer = RewardTrainer(
        LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=64, **sizes)),
        arguments,
        train_dataset=StdlibText(num_bytes=4096, block_size=64),
        callbacks=[JsonLogger(name="rewards")],
    )
    watching = attach(trainer)
    trainer.train()
    (log,) = (callback for callback in trainer.callback_handler.callbacks if isinstance(callback, JsonLogger))
    for record in json.loads(log.path.read_text()):
        if "rewards/mean" in record["metrics"]:
            print(f"step {record['global_step']}: rewards/mean {record['metrics']['rewards/mean']:.3f}")
    print(watching.report())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/trl_like_trainer")
