"""Images grow from epoch to epoch, the batch stays."""

import resource
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

MEMORY = 260
BATCH = 16
ACCUM = 1
SIDES = (64, 96, 160)
STEPS_PER_EPOCH = 12
CLASSES = 10


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(block(3, 16), block(16, 16), block(16, 16), nn.MaxPool2d(2))
        self.body = nn.Sequential(block(16, 32), block(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(32, CLASSES)

    def forward(self, images):
        return self.head(self.body(self.stem(images)))


def load(side):
    """Yields the batches of an epoch, resized to `side`."""
    for _ in range(STEPS_PER_EPOCH * ACCUM):
        images = torch.rand(BATCH, 3, 80, 80)
        yield F.interpolate(images, size=side, mode="bilinear"), torch.randint(CLASSES, (BATCH,))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    small_machine(MEMORY)
    for epoch, side in enumerate(SIDES):
        for number, (images, labels) in enumerate(load(side)):
            loss = F.cross_entropy(model(images), labels) / ACCUM
            loss.backward()
            if (number + 1) % ACCUM == 0:
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: {side} x {side}, loss {loss.item() * ACCUM:.3f}")
    print("done")


if __name__ == "__main__":
    main()
