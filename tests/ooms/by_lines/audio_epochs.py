"""Keyword spotting: the spectrograms of each epoch are made before it; crops grow from epoch to epoch."""

import resource
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 330
BATCH = 32
CLIPS = 600


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def spectrograms(waves, seconds):
    """(clips, 129, frames)"""
    window = torch.hann_window(256)
    parts = []
    for wave in waves:
        crop = wave[: int(16_000 * seconds)]
        parts.append(torch.stft(crop, 256, 128, window=window, return_complex=True).abs().log1p())
    return torch.stack(parts)


def train_epoch(model, optimizer, loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    waves, labels = torch.rand(CLIPS, 64_000), torch.randint(8, (CLIPS,))
    model = nn.Sequential(
        nn.Conv1d(129, 32, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 8)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    small_machine(MEMORY)
    for seconds in (0.5, 1, 2, 4):
        data = spectrograms(waves, seconds)
        loss = train_epoch(model, optimizer, DataLoader(TensorDataset(data, labels), batch_size=BATCH, shuffle=True))
        print(f"{seconds} s: {loss:.3f}")
    print("done")


if __name__ == "__main__":
    main()
