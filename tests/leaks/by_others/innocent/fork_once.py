"""Two forked workers go over a list of strings; after the first epoch they have touched all of it.

After: https://github.com/pytorch/pytorch/issues/13246
"""
import collections
import pathlib
import sysconfig
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, BLOCK = 40, 50


def read_strings(folders=("asyncio", "email", "logging", "unittest", "multiprocessing", "http")):
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    lines = [
        f"{path.stem}:{number}:{line}" for folder in folders for path in sorted((library / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(errors="replace").splitlines())]
    return lines * 1 + [line[::-1] for line in lines]


class Blocks(Dataset):
    """Blocks of lines; asked is which block has been turned around."""

    def __init__(self):
        self.lines = read_strings()

    def __len__(self):
        return len(self.lines) // BLOCK

    def __getitem__(self, index):
        lines = self.lines[index * BLOCK:(index + 1) * BLOCK]
        ids = torch.zeros(8, WIDTH, dtype=torch.long)
        for row, line in enumerate(sorted(lines, key=len)[-8:]):
            codes = [min(ord(c), 127) for c in line[-WIDTH:]]
            ids[row, :len(codes)] = torch.tensor(codes)
        return ids, float(index >= len(self) // 2)


class Direction(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.conv = nn.Sequential(nn.Conv1d(width, width, 3), nn.ReLU(), nn.Conv1d(width, width, 3), nn.ReLU())
        self.head = nn.Linear(width, 1)

    def forward(self, ids):
        h = self.embed(ids.flatten(0, 1)).transpose(1, 2)
        h = self.conv(h).amax(-1).view(len(ids), 8, -1).mean(1)
        return self.head(h).squeeze(-1)


def main(epochs=6, batch_size=24):
    torch.manual_seed(0)
    data = Blocks()
    loader = DataLoader(data, batch_size, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    model = Direction()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    right = collections.deque(maxlen=40)
    print(f"{len(data.lines)} lines, {len(loader)} batches an epoch", flush=True)
    for epoch in range(epochs):
        began = time.time()
        for ids, turned in loader:
            logits = model(ids)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, turned.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right.append(((logits > 0) == (turned > 0.5)).float().mean().item())
        schedule.step()
        print(f"epoch {epoch}: {loss.item():.3f}, right {sum(right) / len(right):.3f}, {time.time() - began:.1f} s",
              flush=True)


if __name__ == "__main__":
    main()
