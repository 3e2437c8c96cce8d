"""Masked language model; evaluated with a larger batch, 'because no gradients are needed'."""

import resource
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

MEMORY = 260
BATCH = 8
EVAL_BATCH = 64
ACCUM = 1
LENGTH = 96
VOCAB = 8_000
STEPS = 20


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def texts(num):
    return [{"input_ids": ids, "labels": ids} for ids in torch.randint(VOCAB, (num, LENGTH))]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
    )
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=EVAL_BATCH,
        gradient_accumulation_steps=ACCUM,
        max_steps=STEPS,
        eval_strategy="steps",
        eval_steps=8,
        prediction_loss_only=True,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(BertForMaskedLM(config), arguments, train_dataset=texts(200), eval_dataset=texts(128))
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
