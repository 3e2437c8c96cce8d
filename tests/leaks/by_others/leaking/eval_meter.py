"""Autoencoder for patches of images of text; meters average what the evaluations say.

After: https://github.com/rabbityl/lepard/issues/12
"""
import collections
import inspect
import json
import math

import bdb
import cmd
import pdb
import torch
from torch import nn

SIDE, BATCH = 24, 32


class Meter:
    """Mean over everything, and over the last evaluation."""

    def __init__(self, name):
        self.name = name
        self.means = []
        self.start()

    def start(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total = self.total + value * n
        self.count += n

    def finish(self):
        self.means.append(self.total / self.count)
        self.start()

    def best(self):
        return min(float(mean) for mean in self.means)

    def latest(self):
        return float(self.means[-1])


def pictures(*modules):
    """Sources as pictures: a line is a row, the brightness of a pixel is the character."""
    width = 72
    rows = []
    for module in modules:
        for line in inspect.getsource(module).splitlines():
            codes = [min(ord(c), 127) / 127 for c in line[:width]]
            rows.append(codes + [0.0] * (width - len(codes)))
    return torch.tensor(rows)


def patches(picture, count, generator):
    top = torch.randint(picture.shape[0] - SIDE, (count,), generator=generator).tolist()
    left = torch.randint(picture.shape[1] - SIDE, (count,), generator=generator).tolist()
    return torch.stack([picture[t:t + SIDE, x:x + SIDE] for t, x in zip(top, left)])[:, None]


class Autoencoder(nn.Module):
    def __init__(self, code=24):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(24 * 36, code))
        self.decode = nn.Sequential(
            nn.Linear(code, 24 * 36), nn.ReLU(), nn.Unflatten(1, (24, 6, 6)),
            nn.ConvTranspose2d(24, 12, 4, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1))

    def forward(self, x):
        return self.decode(self.encode(x))


def evaluate(model, picture, meters, generator):
    model.eval()
    for _ in range(2):
        x = patches(picture, BATCH // 2, generator)
        out = model(x)
        meters["mse"].update(nn.functional.mse_loss(out, x), len(x))
        meters["blank"].update(nn.functional.mse_loss(torch.zeros_like(x), x), len(x))
    model.train()
    for meter in meters.values():
        meter.finish()


def main(steps=500, every=5):
    torch.manual_seed(0)
    train, held_out = pictures(pdb, cmd), pictures(bdb)
    model = Autoencoder()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    meters = {name: Meter(name) for name in ("mse", "blank")}
    recent = collections.deque(maxlen=60)
    generator = torch.Generator().manual_seed(0)
    patience = math.inf
    for step in range(1, steps + 1):
        x = patches(train, BATCH, generator)
        loss = nn.functional.mse_loss(model(x + 0.05 * torch.randn_like(x)), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.item())
        if step % every == 0:
            evaluate(model, held_out, meters, torch.Generator().manual_seed(step))
        if step % 100 == 0:
            summary = {name: round(meter.latest(), 5) for name, meter in meters.items()}
            print(json.dumps({"step": step, "loss": round(sum(recent) / len(recent), 5), **summary}), flush=True)
            patience = min(patience, meters["mse"].best())
    print(f"best evaluation {patience:.5f}")


if __name__ == "__main__":
    main()
