"""A vision transformer on small pictures with the batch size of a paper that had eight cards."""

import resource
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

MEMORY = 400
BATCH = 128
ACCUM = 1
STEPS = 3


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = ViTConfig(
        image_size=32,
        patch_size=2,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=10,
        attn_implementation="eager",
    )
    pictures = [{"pixel_values": torch.rand(3, 32, 32), "labels": number % 10} for number in range(512)]
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        max_steps=STEPS,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(ViTForImageClassification(config), arguments, train_dataset=pictures)
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
