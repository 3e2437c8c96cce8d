"""A language model is trained, then trainer.predict gives its guesses for a test set."""

import resource
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

MEMORY = 300
BATCH = 4
EVAL_BATCH = 4
LENGTH = 48
VOCAB = 6_000


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def texts(num):
    return [{"input_ids": ids, "labels": ids} for ids in torch.randint(VOCAB, (num, LENGTH))]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=64, n_layer=2, n_head=4))
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=EVAL_BATCH,
        max_steps=12,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=texts(100))
    small_machine(MEMORY)
    trainer.train()
    found = trainer.predict(texts(300)).predictions
    print("finished", found.shape)


if __name__ == "__main__":
    main()
