"""Spectrograms come as a stream that is shuffled through a buffer."""

import random
import resource
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments

MEMORY = 220
BUFFER = 1_000
BATCH = 8
ACCUM = 1
WORKERS = 0
STEPS = 30


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def stream():
    """Yields spectrograms, 80 x 1,000 numbers each (0.3 MiB)."""
    for number in range(1_500):
        yield {"features": torch.randn(80, 1_000), "labels": torch.tensor(number % 4)}


class Shuffled(IterableDataset):
    def __init__(self, examples, buffer_size):
        self.examples = examples
        self.buffer_size = buffer_size

    def __iter__(self):
        buffer = []
        for example in self.examples():
            if len(buffer) < self.buffer_size:
                buffer.append(example)
                continue
            place = random.randrange(self.buffer_size)
            yield buffer[place]
            buffer[place] = example
        random.shuffle(buffer)
        yield from buffer


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(80, 32, 9, stride=4)
        self.head = nn.Linear(32, 4)

    def forward(self, features, labels):
        scores = self.head(torch.relu(self.conv(features)).mean(2))
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        dataloader_num_workers=WORKERS,
        max_steps=STEPS,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(Listener(), arguments, train_dataset=Shuffled(stream, BUFFER))
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
