"""Finds the machine that made a vibration; the recordings are .npy files that are mapped, not read.

After: https://github.com/numpy/numpy/issues/21292
"""
import collections
import pathlib
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, Sampler
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

MACHINES, FILES, LENGTH, WINDOW = 6, 1200, 16_000, 512


def record(folder):
    """One file per measurement, as the logger of the plant writes them."""
    rng = np.random.default_rng(0)
    time = np.arange(LENGTH, dtype=np.float32) / 4000
    for number in range(FILES):
        machine = number % MACHINES
        hum = np.sin(2 * np.pi * (35 + 9 * machine) * time + rng.uniform(0, 6))
        np.save(folder / f"{number:04d}.npy", (hum + rng.normal(0.4, 1.0, LENGTH)).astype(np.float32))


class Vibrations(Dataset):
    """Windows of recordings; mapped files that were opened are kept open."""

    def __init__(self, folder):
        self.folder = folder
        self.open_files = {}
        self.read = 0

    def __len__(self):
        return FILES * 4

    def recording(self, number):
        if number not in self.open_files:
            data = np.load(self.folder / f"{number:04d}.npy", mmap_mode="c")
            data -= data.mean()
            self.open_files[number] = data
        return self.open_files[number]

    def __getitem__(self, index):
        number, part = divmod(index, 4)
        data = self.recording(number)
        start = np.random.randint(part * LENGTH // 4, (part + 1) * LENGTH // 4 - WINDOW)
        window = torch.from_numpy(np.array(data[start:start + WINDOW]))
        self.read += window.nbytes
        return {"window": window / window.std(), "labels": number % MACHINES}


class InBlocks(Sampler):
    """Neighbouring files together, as a disk likes it; the order of the blocks is random."""

    def __init__(self, length, block=32):
        self.length, self.block = length, block

    def __len__(self):
        return self.length

    def __iter__(self):
        starts = torch.arange(0, self.length, self.block)
        for start in starts[torch.randperm(len(starts))].tolist():
            yield from range(start, min(start + self.block, self.length))


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WINDOW // 2 + 1, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, MACHINES)

    def forward(self, window, labels=None):
        spectrum = torch.fft.rfft(window * torch.hann_window(WINDOW)).abs().log1p()
        logits = self.head(self.net(spectrum))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class PlantTrainer(Trainer):
    def _get_train_sampler(self, *unused):
        return InBlocks(len(self.train_dataset))


class Reading(TrainerCallback):
    def __init__(self):
        self.losses = collections.deque(maxlen=4)

    def on_log(self, args, state, control, logs=None, train_dataloader=None, **kwargs):
        if "loss" in logs:
            self.losses.append(logs["loss"])
            mean = sum(self.losses) / len(self.losses)
            print(f"step {state.global_step}: loss {mean:.3f}, {train_dataloader.dataset.read / 2**20:.0f} MiB read")


def main():
    set_seed(6)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        record(folder)
        arguments = TrainingArguments(
            str(folder / "out"), max_steps=290, per_device_train_batch_size=16, learning_rate=1e-3, use_cpu=True,
            logging_steps=30, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False)
        PlantTrainer(Listener(), arguments, train_dataset=Vibrations(folder), callbacks=[Reading()]).train()


if __name__ == "__main__":
    main()
