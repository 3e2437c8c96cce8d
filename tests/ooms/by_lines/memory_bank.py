"""Contrastive learning against the embeddings of all earlier batches."""

import resource
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

MEMORY = 200
BATCH = 256
STEPS = 300


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Bank:
    """Negatives for the loss."""

    def __init__(self):
        self.keys = []

    def add(self, z):
        self.keys.append(z.detach())

    def negatives(self):
        return torch.cat(self.keys)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    bank = Bank()
    small_machine(MEMORY)
    for step in range(STEPS):
        x = torch.rand(BATCH, 128)
        z = F.normalize(net(x + 0.1 * torch.randn_like(x)), dim=1)
        other = F.normalize(net(x + 0.1 * torch.randn_like(x)), dim=1)
        bank.add(other)
        logits = z @ bank.negatives().T / 0.1
        target = torch.arange(len(logits)) + step * BATCH
        loss = F.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("done", loss.item())


if __name__ == "__main__":
    main()
