"""Metric learning in a plain loop; later negatives also come from a memory bank, by differences of all pairs."""

import resource
from pathlib import Path

import torch
from torch import nn

MEMORY = 500
BATCH = 192
ACCUM = 1
BANK = 4096
WARM = 12
STEPS = 20
WIDTH = 128


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, WIDTH))

    def forward(self, x):
        return nn.functional.normalize(self.layers(x), dim=-1)


def distances(left, right):
    return (left[:, None, :] - right[None, :, :]).square().sum(-1)


def info_nce(queries, keys, bank):
    positive = -(queries - keys).square().sum(-1, keepdim=True)
    others = keys if bank is None else bank
    negative = -distances(queries, others)
    scores = torch.cat([positive, negative], 1) / 0.1
    return nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    encoder = Encoder()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    bank = nn.functional.normalize(torch.randn(BANK, WIDTH), dim=-1)
    small_machine(MEMORY)
    for step in range(STEPS):
        optimizer.zero_grad()
        for _ in range(ACCUM):
            images = torch.randn(BATCH, 256)
            keys = encoder(images + 0.1 * torch.randn_like(images)).detach()
            loss = info_nce(encoder(images), keys, bank if step >= WARM else None)
            (loss / ACCUM).backward()
            bank = torch.cat([keys, bank])[:BANK]
        optimizer.step()
    print("finished", round(loss.item(), 3))


if __name__ == "__main__":
    main()
