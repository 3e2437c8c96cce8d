"""Masks of a segmentation are made one-hot for all slices before the training."""

import resource
from pathlib import Path

import numpy as np
import torch
from torch import nn

MEMORY = 280
SLICES = 400
SIDE = 64
ORGANS = 40
BATCH = 4
STEPS = 30


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def one_hot(labels, classes):
    return (np.arange(classes) == labels[..., None]).astype(np.int32)


def read():
    """Returns slices [400, 1, 64, 64] and masks [400, 64, 64, 40]."""
    rng = np.random.default_rng(0)
    labels = rng.integers(ORGANS, size=(SLICES, SIDE, SIDE), dtype=np.uint8)
    slices = labels[:, None].astype(np.float32) / ORGANS
    return slices, one_hot(labels, ORGANS)


def dice(scores, masks):
    shares = scores.softmax(1)
    common = (shares * masks).sum((0, 2, 3))
    return 1 - (2 * common / (shares + masks).sum((0, 2, 3))).mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    small_machine(MEMORY)
    print("reading data...")
    slices, masks = read()
    print("finished reading data.")
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, ORGANS, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        rows = np.random.randint(SLICES, size=BATCH)
        target = torch.from_numpy(masks[rows]).permute(0, 3, 1, 2).float()
        loss = dice(model(torch.from_numpy(slices[rows])), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"done, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
