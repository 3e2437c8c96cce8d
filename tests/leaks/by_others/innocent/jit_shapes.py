"""Convolutions over sounds of various lengths; from the middle on a part is replaced by a traced one.

After: https://github.com/pytorch/pytorch/issues/46380
"""
import collections
import math
import random
import time
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", category=DeprecationWarning)
LENGTHS = tuple(range(400, 2000, 100))


class Front(nn.Module):
    """Frames of a sound to features: what is traced later."""

    def __init__(self, width=24):
        super().__init__()
        self.frames = nn.Conv1d(1, width, 32, stride=8)
        self.mix = nn.Conv1d(width, width, 5, padding=2)

    def forward(self, sound):
        h = torch.tanh(self.frames(sound)) * torch.sigmoid(self.frames(sound))
        return torch.relu(self.mix(h) + h)


class Chirps:
    """Rising, falling and steady tones."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def batch(self, rows=12):
        length = self.rng.choice(LENGTHS)
        labels = [self.rng.randrange(3) for _ in range(rows)]
        t = torch.arange(length) / 4000
        sounds = []
        for label in labels:
            rate = (0, 600, -600)[label]
            base = self.rng.uniform(500, 900)
            sounds.append(torch.sin(2 * math.pi * (base + rate * t) * t) + 0.4 * torch.randn(length))
        return torch.stack(sounds)[:, None], torch.tensor(labels)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = Front()
        self.back = nn.GRU(24, 32, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, sounds):
        _, state = self.back(self.front(sounds).transpose(1, 2)[:, ::2])
        return self.head(state[-1])

    def speed_up(self):
        """The front becomes TorchScript; its weights stay the same tensors."""
        self.front = torch.jit.script(self.front)


def evaluate(model, batches=6):
    chirps, right, total = Chirps(seed=99), 0, 0
    model.eval()
    with torch.no_grad():
        for _ in range(batches):
            sounds, labels = chirps.batch(24)
            right += (model(sounds).argmax(-1) == labels).sum().item()
            total += len(labels)
    model.train()
    return right / total


def main(steps=450, middle=200):
    torch.manual_seed(0)
    model, chirps = Model(), Chirps(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses, seen = collections.deque(maxlen=50), collections.Counter()
    began = time.time()
    for step in range(1, steps + 1):
        if step == middle:
            print(f"step {step}: {step / (time.time() - began):.0f} steps/s before", flush=True)
            model.speed_up()
        sounds, labels = chirps.batch()
        seen[sounds.shape[-1]] += 1
        loss = nn.functional.cross_entropy(model(sounds), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 75 == 0:
            print(f"step {step}: {sum(losses) / len(losses):.3f}, accuracy {evaluate(model):.2f}", flush=True)
    print(f"{len(seen)} lengths, the most frequent {seen.most_common(2)}")


if __name__ == "__main__":
    main()
