"""Accelerate loop with a 'fast' C staging buffer for the byte windows."""
import collections
import ctypes
import tarfile

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 2048
BATCH = 16
STEPS = 400
ACCUM = 2

libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None


class Windows(Dataset):
    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()

    def __len__(self):
        return (len(self.data) - WINDOW) // 7

    def __getitem__(self, i):
        return self.data[i * 7:i * 7 + WINDOW]


class StagingCollator:
    """Copies all windows of a batch into one C buffer and makes floats of it."""

    def __init__(self):
        self.sizes = collections.deque(maxlen=16)
        self.table = np.arange(256, dtype=np.float32) / 255.0

    def __call__(self, windows):
        total = BATCH * WINDOW * 2
        buffer = libc.malloc(total)
        ctypes.memset(buffer, 0, total)
        for row, window in enumerate(windows):
            ctypes.memmove(buffer + row * WINDOW, window, len(window))
        view = (ctypes.c_ubyte * (len(windows) * WINDOW)).from_address(buffer)
        raw = np.frombuffer(view, dtype=np.uint8).reshape(len(windows), WINDOW)
        self.sizes.append(total)
        return torch.from_numpy(self.table[raw])


def build():
    return nn.Sequential(
        nn.Unflatten(1, (1, WINDOW)), nn.Conv1d(1, 8, 9, stride=4), nn.GELU(),
        nn.Conv1d(8, 16, 9, stride=4), nn.GELU(), nn.AdaptiveAvgPool1d(16), nn.Flatten(),
        nn.Linear(256, 64))


def main():
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUM)
    model = build()
    loader = DataLoader(Windows(tarfile.__file__), batch_size=BATCH, shuffle=True, drop_last=True,
                        collate_fn=StagingCollator())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    history = collections.deque(maxlen=50)
    step = 0
    while step < STEPS:
        for x in loader:
            with accelerator.accumulate(model):
                a, b = model(x), model(x + 0.05 * torch.randn_like(x))
                a, b = nn.functional.normalize(a, dim=1), nn.functional.normalize(b, dim=1)
                target = torch.arange(len(a))
                loss = nn.functional.cross_entropy(a @ b.T / 0.1, target)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            history.append(loss.item())
            step += 1
            if step % 100 == 0:
                accelerator.print(step, round(sum(history) / len(history), 4))
            if step == STEPS:
                break


if __name__ == "__main__":
    main()
