"""Tells spoken-like syllables apart; decoding is slow, so workers keep what they decoded.

After: https://github.com/ultralytics/ultralytics/pull/19947
"""
import audioop
import collections
import random
import time
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore", category=DeprecationWarning)
CLASSES, CLIPS, LENGTH = 5, 400, 8000


def synthesize(label, rng):
    """A second of two formants, compressed to half its size as 8-bit u-law."""
    time_ = np.arange(LENGTH) / 8000
    low, high = 200 + 60 * label, 900 + 150 * label
    wave = np.sin(2 * np.pi * (low + rng.normal(0, 15)) * time_) + 0.5 * np.sin(2 * np.pi * high * time_)
    wave = (wave * np.exp(-3 * time_) + rng.normal(0, 0.05, LENGTH)).clip(-2, 2) * 12_000
    return audioop.lin2ulaw(wave.astype("<i2").tobytes(), 2)


class Syllables(Dataset):
    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = [i % CLASSES for i in range(CLIPS)]
        self.compressed = [synthesize(label, rng) for label in self.labels]
        self.decoded = {}

    def __len__(self):
        return CLIPS

    def decode(self, index, speed):
        """Samples of a clip as floats, played at some speed."""
        key = index, speed
        if key not in self.decoded:
            raw = audioop.ulaw2lin(self.compressed[index], 2)
            raw, _ = audioop.ratecv(raw, 2, 1, 8000, int(8000 / speed), None)
            self.decoded[key] = np.frombuffer(raw, dtype="<i2").astype(np.float32) / 32768
        return self.decoded[key]

    def __getitem__(self, index):
        speed = round(random.uniform(0.8, 1.25), 4)
        samples = self.decode(index, speed)
        start = random.randrange(400)
        piece = samples[start:start + 4096]
        return torch.from_numpy(piece.copy()), self.labels[index]


class Ear(nn.Module):
    def __init__(self, bands=32):
        super().__init__()
        self.filters = nn.Conv1d(1, bands, 64, stride=32)
        self.mix = nn.Sequential(nn.ReLU(), nn.Conv1d(bands, 48, 3), nn.ReLU())
        self.head = nn.Linear(48, CLASSES)

    def forward(self, samples):
        return self.head(self.mix(self.filters(samples[:, None])).mean(-1))


def accuracy(model, loader, batches):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for _, (samples, labels) in zip(range(batches), loader):
            right += (model(samples).argmax(-1) == labels).sum().item()
            total += len(labels)
    model.train()
    return right / total


def main(steps=500, batch_size=10):
    torch.manual_seed(0)
    loader = DataLoader(
        Syllables(), batch_size, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=2,
        worker_init_fn=lambda number: random.seed(number))
    check = DataLoader(Syllables(seed=1), batch_size=20)
    model = Ear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    recent = collections.deque(maxlen=40)
    step, began = 0, time.time()
    while step < steps:
        for samples, labels in loader:
            loss = nn.functional.cross_entropy(model(samples), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            recent.append(loss.item())
            step += 1
            if step % 100 == 0:
                right = accuracy(model, check, batches=3)
                print(f"{step} loss {sum(recent) / len(recent):.3f} accuracy {right:.2f}", flush=True)
            if step == steps:
                break
    print(f"{step / (time.time() - began):.0f} steps/s")


if __name__ == "__main__":
    main()
