"""Two stages with Accelerate: few rows first, then all of the measurements, which a table of bytes has on the disk."""

import resource
import tempfile
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 330
BATCH = 32
ROWS = (400, 12_000)
WIDTH = 4_096
STEPS = 25


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def write_table(path, rows):
    table = np.random.default_rng(0).integers(0, 255, (rows, WIDTH), dtype=np.uint8)
    np.save(path, table)


def load_table(path):
    """All rows, each column with mean 0 and deviation 1."""
    table = np.load(path)
    values = (table - table.mean(axis=0)) / table.std(axis=0)
    return TensorDataset(torch.tensor(values, dtype=torch.float32))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"stage{number}.npy" for number in range(len(ROWS))]
        for path, rows in zip(paths, ROWS, strict=True):
            write_table(path, rows)
        small_machine(MEMORY)
        for number, path in enumerate(paths):
            loader = accelerator.prepare(DataLoader(load_table(path), batch_size=BATCH, shuffle=True))
            for step, (rows,) in enumerate(loader):
                loss = nn.functional.mse_loss(model(rows), rows)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                if step == STEPS:
                    break
            print(f"stage {number}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
