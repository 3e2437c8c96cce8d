"""Trains a network, then collects the activations of its layers on all pictures by hooks, for linear probes."""

import resource
from collections import defaultdict
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 230
BATCH = 32


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def collect(net, loader, layers):
    """All activations of these layers."""
    store = defaultdict(list)
    hooks = [
        net[number].register_forward_hook(lambda module, args, out, number=number: store[number].append(out))
        for number in layers
    ]
    net.eval()
    with torch.no_grad():
        for x, _ in loader:
            net(x)
    for hook in hooks:
        hook.remove()
    return {
        number: torch.cat([part.flatten(1).mean(1, keepdim=True) for part in parts]) for number, parts in store.items()
    }


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    data = TensorDataset(torch.rand(1_500, 3, 32, 32), torch.randint(10, (1_500,)))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    small_machine(MEMORY)
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    features = collect(net, DataLoader(data, batch_size=BATCH), (1, 3))
    print("done", {number: tuple(found.shape) for number, found in features.items()})


if __name__ == "__main__":
    main()
