"""Byte-level Llama on standard library sources; how sure the model is goes into the log next to the loss.

After: https://github.com/huggingface/transformers/issues/6939
"""
import argparse
import collections
import inspect
import json
import statistics
import tempfile
import textwrap

import torch
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

BLOCK = 48
VOCAB = 256


class Bytes(Dataset):
    """Blocks of bytes; every n-th block belongs to the evaluation."""

    def __init__(self, modules, held_out, every=20):
        text = "\n".join(inspect.getsource(m) for m in modules)
        raw = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8).long()
        blocks = raw[: len(raw) // BLOCK * BLOCK].view(-1, BLOCK)
        mine = (torch.arange(len(blocks)) % every == 0) == held_out
        self.blocks = blocks[mine]

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        row = self.blocks[index]
        return {"input_ids": row, "labels": row}


def entropy_of(logits):
    """Mean entropy in nats of the next-byte distribution."""
    log_p = F.log_softmax(logits.float(), dim=-1)
    return -(log_p.exp() * log_p).sum(-1).mean()


class CalibratedTrainer(Trainer):
    """Logs the mean entropy since the last log, and the spread over the run so far."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.entropies = []
        self.last_losses = collections.deque(maxlen=64)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training:
            self.entropies.append(entropy_of(outputs.logits))
            self.last_losses.append(loss.detach())
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        if "loss" in logs and self.entropies:
            recent = self.entropies[-self.args.logging_steps:]
            logs["entropy"] = round(sum(e.item() for e in recent) / len(recent), 4)
            logs["entropy_min"] = round(min(e.item() for e in self.entropies), 4)
            logs["loss_median"] = round(statistics.median(x.item() for x in self.last_losses), 4)
        super().log(logs, *args, **kwargs)


class Progress(TrainerCallback):
    def __init__(self):
        self.best = float("inf")

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.best = min(self.best, metrics["eval_loss"])

    def on_log(self, args, state, control, logs=None, **kwargs):
        print(json.dumps({"step": state.global_step, **logs}))


def main():
    set_seed(3)
    modules = (argparse, inspect, textwrap, statistics, collections)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=BLOCK, use_cache=False)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=6, per_device_eval_batch_size=16,
        learning_rate=2e-3, warmup_steps=20, logging_steps=50, eval_strategy="steps", eval_steps=100,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)
    progress = Progress()
    trainer = CalibratedTrainer(
        LlamaForCausalLM(config), arguments, train_dataset=Bytes(modules, held_out=False),
        eval_dataset=Bytes(modules, held_out=True), callbacks=[progress])
    trainer.train()
    print(f"best loss of the evaluations {progress.best:.3f}")


if __name__ == "__main__":
    main()
