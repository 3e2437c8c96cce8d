"""Topics of documentation by hashed bigrams: a wide table of embeddings, and an optimizer with two moments.

After: https://github.com/pytorch/pytorch/issues/9439
"""

import inspect
import itertools
import os
import random
import resource
import statistics
import subprocess
import threading
import zipfile

import torch
from torch import nn

BATCH = 32
ACCUM = 1
LENGTH = 200
WIDTH = 384
DTYPE = torch.float32
OPTIMIZER = "adamw"
STEPS = 12
MEMORY = 620

BUCKETS = 120_000
MODULES = (statistics, subprocess, threading, zipfile, random, os)


def small_machine(mib):
    """From here on this process may map so many MiB more than it has: stands for a machine with little memory."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def samples(count):
    """Hashed bigrams of pieces of sources, [count, LENGTH], and the module they are from."""
    rng = random.Random(0)
    sources = [inspect.getsource(module) for module in MODULES]
    for _ in range(count):
        labels = [rng.randrange(len(MODULES)) for _ in range(BATCH)]
        rows = []
        for label in labels:
            start = rng.randrange(len(sources[label]) - LENGTH - 1)
            piece = sources[label][start : start + LENGTH + 1]
            rows.append([(ord(a) * 8191 + ord(b) * 127) % BUCKETS for a, b in itertools.pairwise(piece)])
        yield torch.tensor(rows), torch.tensor(labels)


class Topics(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(BUCKETS, WIDTH, mode="mean")
        self.head = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, len(MODULES)))

    def forward(self, ids):
        return self.head(self.table(ids))


def make_optimizer(model):
    if OPTIMIZER == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.5)
    if OPTIMIZER == "adafactor":
        return torch.optim.Adafactor(model.parameters(), lr=1e-2)
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def main():
    torch.manual_seed(0)
    small_machine(MEMORY)
    model = Topics().to(DTYPE)
    optimizer = make_optimizer(model)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M weights", flush=True)
    for step, (ids, labels) in enumerate(samples(STEPS * ACCUM), 1):
        loss = nn.functional.cross_entropy(model(ids).float(), labels)
        (loss / ACCUM).backward()
        print(f"batch {step}: {loss.item():.3f}", flush=True)
        if step % ACCUM == 0:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
