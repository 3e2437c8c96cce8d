"""Autoencoder on bag-of-trigram features, streaming from stdlib sources."""
import glob
import itertools
import os
import zlib

import torch
from torch import nn

FEATURES = 1024
BATCH = 32
STEPS = 400
LINES_PER_ROW = 6


def source_lines():
    folder = os.path.dirname(os.__file__)
    for path in itertools.cycle(sorted(glob.glob(os.path.join(folder, "*.py")))[:60]):
        with open(path, encoding="utf-8", errors="replace") as f:
            yield from (line for line in f if line.strip())


def featurise(text):
    row = torch.zeros(FEATURES)
    at = [zlib.crc32(text[i:i + 3].encode()) % FEATURES for i in range(0, len(text) - 3, 3)]
    row.index_add_(0, torch.tensor(at or [0]), torch.ones(len(at) or 1))
    return row / (row.norm() + 1e-6)


def stream():
    lines = source_lines()
    rows = []
    while True:
        rows.append(featurise("".join(itertools.islice(lines, LINES_PER_ROW))[:120]))
        if len(rows) == BATCH:
            yield torch.stack(rows)
            rows = []


class AutoEncoder(nn.Module):
    def __init__(self, dim, latent=32):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, latent))
        self.dec = nn.Sequential(nn.Linear(latent, 128), nn.ReLU(), nn.Linear(128, dim))

    def forward(self, x):
        return self.dec(self.enc(x))


def sparsity(batches, n=4):
    """Look at the first batches to decide how the loss is weighted."""
    head = list(itertools.islice(batches, n))
    return sum((b == 0).float().mean().item() for b in head) / len(head), head[0].shape[1]


def main():
    torch.manual_seed(0)
    batches, preview = itertools.tee(stream())
    empty, dim = sparsity(preview)
    model = AutoEncoder(dim)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = []
    best = float("inf")
    for step, x in enumerate(itertools.islice(batches, STEPS)):
        weight = torch.where(x > 0, 1.0, 1.0 - empty)
        loss = (weight * (model(x) - x) ** 2).sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        best = min(best, history[-1])
        if step % 100 == 99:
            print(f"step {step + 1} loss {sum(history[-100:]) / 100:.4f} best {best:.4f}")


if __name__ == "__main__":
    main()
