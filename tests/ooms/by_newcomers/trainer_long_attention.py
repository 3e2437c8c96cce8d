"""Documents of mixed lengths, padded to the longest of a batch, in a model that writes out its attention weights."""

import resource
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

MEMORY = 420
BATCH = 4
ACCUM = 1
MAX_LENGTH = 1_536
STEPS = 30


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def documents():
    lengths = [80 + 37 * (number % 9) for number in range(300)]
    lengths[::60] = [1_400] * len(lengths[::60])
    return [{"input_ids": torch.randint(500, (min(length, MAX_LENGTH),))} for length in lengths]


def collate(examples):
    ids = [example["input_ids"] for example in examples]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    return {"input_ids": padded, "attention_mask": mask, "labels": padded.masked_fill(mask == 0, -100)}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = GPT2Config(
        vocab_size=500, n_positions=MAX_LENGTH, n_embd=64, n_layer=2, n_head=4, attn_implementation="eager"
    )
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        max_steps=STEPS,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=3,
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=documents(), data_collator=collate)
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
