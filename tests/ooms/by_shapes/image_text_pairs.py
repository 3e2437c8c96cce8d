"""Pictures and captions (CLIP): each row of a batch is compared with every other one; a large batch from a paper."""

import resource
from pathlib import Path

import torch
from torch import nn

MEMORY = 120
BATCH = 2_048
ACCUM = 1
STEPS = 6


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Encoders(nn.Module):
    def __init__(self):
        super().__init__()
        self.pictures = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 64),
        )
        self.words = nn.EmbeddingBag(1_000, 64)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pictures, captions):
        seen = nn.functional.normalize(self.pictures(pictures), dim=1)
        read = nn.functional.normalize(self.words(captions), dim=1)
        return self.scale.exp() * seen @ read.T


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Encoders()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    small_machine(MEMORY)
    for _ in range(STEPS):
        for _ in range(ACCUM):
            pictures, captions = torch.rand(BATCH, 3, 32, 32), torch.randint(1_000, (BATCH, 12))
            logits = model(pictures, captions)
            right = torch.arange(len(logits))
            loss = nn.functional.cross_entropy(logits, right) + nn.functional.cross_entropy(logits.T, right)
            (loss / ACCUM).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("done", loss.item())


if __name__ == "__main__":
    main()
