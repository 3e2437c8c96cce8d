"""Metric learning: all triplets of a batch; a batch is all pictures of eight people, of whom one has very many."""

import random
import resource
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 260
PEOPLE = 8
STEPS = 40


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class AllOfSome:
    """Batches of the pictures of PEOPLE people."""

    def __init__(self, owners):
        self.of = {person: (owners == person).nonzero()[:, 0].tolist() for person in owners.unique().tolist()}

    def __len__(self):
        return STEPS

    def __iter__(self):
        for _ in range(STEPS):
            people = random.sample(sorted(self.of), PEOPLE)
            yield [index for person in people for index in self.of[person]]


def triplet_loss(z, owners, margin=0.2):
    """Over all (anchor, positive, negative)."""
    distance = torch.cdist(z, z)
    same = owners[:, None] == owners[None, :]
    loss = distance[:, :, None] - distance[:, None, :] + margin
    valid = same[:, :, None] & ~same[:, None, :]
    loss = torch.relu(loss * valid.float())
    return loss.sum() / (loss > 1e-16).sum().clamp(min=1)


def main():
    torch.manual_seed(0)
    random.seed(1)
    torch.set_num_threads(1)
    owners = torch.cat([torch.arange(60).repeat_interleave(10), torch.full((280,), 60)])
    data = TensorDataset(torch.rand(len(owners), 256), owners)
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_sampler=AllOfSome(owners))
    small_machine(MEMORY)
    for x, who in loader:
        loss = triplet_loss(nn.functional.normalize(model(x), dim=1), who)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("done", loss.item())


if __name__ == "__main__":
    main()
