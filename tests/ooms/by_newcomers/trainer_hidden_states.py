"""A classifier whose hidden states are wanted by a probe later; it is evaluated with accuracy after each 15 steps."""

import resource
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

MEMORY = 330
BATCH = 8
EVAL_BATCH = 16
ACCUM = 1
LENGTH = 128
EVAL_ROWS = 400
STEPS = 30


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def rows(num):
    return [
        {"input_ids": torch.randint(5, 2_000, (LENGTH,)), "labels": torch.tensor(number % 3)} for number in range(num)
    ]


def compute_metrics(prediction):
    logits = prediction.predictions
    if isinstance(logits, tuple):
        logits = logits[0]
    return {"accuracy": float(np.mean(logits.argmax(-1) == prediction.label_ids))}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=2_000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        num_labels=3,
        output_hidden_states=True,
    )
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=EVAL_BATCH,
        gradient_accumulation_steps=ACCUM,
        max_steps=STEPS,
        eval_strategy="steps",
        eval_steps=15,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model, arguments, train_dataset=rows(200), eval_dataset=rows(EVAL_ROWS), compute_metrics=compute_metrics
    )
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
