"""A plain loop whose AdamW works on all tensors at once (foreach=True), over a wide embedding and layers."""

import resource
from pathlib import Path

import torch
from torch import nn

MEMORY = 520
BATCH = 8
LAYERS = 24
WIDTH = 1024
FOREACH = True
OPTIMIZER = "adamw"
DTYPE = torch.float32
STEPS = 4


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


def make_optimizer(model):
    if OPTIMIZER == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=FOREACH)
    if OPTIMIZER == "adafactor":
        return torch.optim.Adafactor(model.parameters(), lr=1e-3)
    return torch.optim.SGD(model.parameters(), lr=1e-2)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    small_machine(MEMORY)
    model = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]).to(DTYPE)
    optimizer = make_optimizer(model)
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH, dtype=DTYPE)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("finished", round(loss.item(), 3))


if __name__ == "__main__":
    main()
