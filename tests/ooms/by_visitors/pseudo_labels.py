"""Self-training: after each round the surest of the unlabelled images join the training set with the model's labels."""

import resource
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 260
BATCH = 32
ROUNDS = 8
PER_ROUND = 500


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def train(model, optimizer, images, labels):
    model.train()
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True)
    for number, (x, y) in enumerate(loader):
        if number == 10:
            break
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def surest(model, pool):
    """The PER_ROUND images that the model is most sure of, and what it takes them for."""
    model.eval()
    scores = torch.cat([model(part).softmax(1) for part in pool.split(100)])
    sure, labels = scores.max(1)
    best = sure.topk(PER_ROUND).indices
    return pool[best], labels[best]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = torch.rand(500, 3, 64, 64), torch.randint(10, (500,))
    pool = torch.rand(1_500, 3, 64, 64)
    small_machine(MEMORY)
    for number in range(ROUNDS):
        train(model, optimizer, images, labels)
        new_images, new_labels = surest(model, pool)
        images = torch.cat([images, new_images])
        labels = torch.cat([labels, new_labels])
        print(f"round {number}: {len(images)} images")
    print("done")


if __name__ == "__main__":
    main()
