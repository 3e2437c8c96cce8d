"""A data set that keeps each decoded image, to be faster in the second epoch."""

import resource
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

MEMORY = 260
BATCH = 16
WORKERS = 0
IMAGES = 1_200
SIDE = 192
EPOCHS = 2


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Photos(Dataset):
    def __init__(self):
        self.decoded = {}

    def __len__(self):
        return IMAGES

    def read(self, index):
        """What a decoder gives: bytes of a photo, made smaller."""
        generator = torch.Generator().manual_seed(index)
        photo = torch.randint(256, (3, 384, 384), dtype=torch.uint8, generator=generator)
        return F.interpolate(photo[None].float() / 255, size=SIDE, mode="bilinear")[0]

    def __getitem__(self, index):
        if index not in self.decoded:
            self.decoded[index] = self.read(index)
        return self.decoded[index], index % 5


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Photos(), batch_size=BATCH, shuffle=True, num_workers=WORKERS)
    small_machine(MEMORY)
    for epoch in range(EPOCHS):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    print("done")


if __name__ == "__main__":
    main()
