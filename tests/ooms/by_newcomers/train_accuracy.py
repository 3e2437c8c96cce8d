"""A small classifier on a table; its accuracy on all of the training rows is printed every few steps."""

import resource
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

MEMORY = 220
BATCH = 256
ROWS = 50_000
FEATURES = 40
HIDDEN = 1_024
EPOCHS = 2


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def accuracy(model, X, y):
    model.eval()
    with torch.no_grad():
        predicted = model(X).argmax(dim=1)
    model.train()
    return (predicted == y).float().mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    X = torch.randn(ROWS, FEATURES)
    y = (X[:, 0] * X[:, 1] > 0).long()
    model = nn.Sequential(
        nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    small_machine(MEMORY)
    for epoch in range(EPOCHS):
        order = torch.randperm(ROWS)
        for step in range(0, 12_800, BATCH):
            rows = order[step : step + BATCH]
            loss = F.cross_entropy(model(X[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: train accuracy {accuracy(model, X, y):.3f}")


if __name__ == "__main__":
    main()
