"""Classifies lines of code by the folder they come from; forked workers read them from a list.

After: https://github.com/pytorch/pytorch/issues/20433
"""
import collections
import os
import pathlib
import sysconfig
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

WIDTH = 48
FOLDERS = ("asyncio", "email", "json", "logging", "unittest", "xml", "http", "multiprocessing", "ctypes", "html")
CONTEXT = 40


def read_lines(copies=6):
    """All lines of some packages, shuffled by block, with the number of their package."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    lines, labels = [], []
    for label, folder in enumerate(FOLDERS):
        for path in sorted((library / folder).rglob("*.py")):
            found = path.read_text(encoding="utf-8", errors="replace").splitlines()
            lines += found
            labels += [label] * len(found)
    order = np.random.default_rng(0).permutation(len(lines) // CONTEXT * copies) % (len(lines) // CONTEXT)
    starts = order * CONTEXT
    rows = [f"{line}  # {n}" for n, start in enumerate(starts) for line in lines[start:start + CONTEXT]]
    return rows, [labels[start] for start in starts]


class CodeLines(Dataset):
    """A sample is a block of lines, of which three are picked as the input."""

    def __init__(self):
        lines, self.labels = read_lines()
        self.lines = lines
        self.seed = os.getpid()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        block = self.lines[index * CONTEXT:(index + 1) * CONTEXT]
        longest = sorted(block, key=len)[-3:]
        ids = np.zeros((3, WIDTH), dtype=np.int64)
        for row, line in enumerate(longest):
            codes = np.frombuffer(line.strip().encode("ascii", "replace")[:WIDTH], dtype=np.uint8)
            ids[row, :len(codes)] = codes
        return {"ids": ids, "labels": self.labels[index]}


class Bag(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.embed = nn.Embedding(256, hidden, padding_idx=0)
        self.conv = nn.Conv1d(hidden, hidden, 5, padding=2)
        self.head = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, len(FOLDERS)))

    def forward(self, ids, labels=None):
        x = self.embed(ids.flatten(1)).transpose(1, 2)
        logits = self.head(self.conv(x).relu().amax(-1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class InOrder(Trainer):
    """The blocks are shuffled already."""

    def _get_train_sampler(self, *unused):
        return SequentialSampler(self.train_dataset)


class LossWindow(TrainerCallback):
    def __init__(self, size=5):
        self.window = collections.deque(maxlen=size)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.window.append(logs["loss"])
            print(f"step {state.global_step}: loss {sum(self.window) / len(self.window):.3f}")


if __name__ == "__main__":
    set_seed(1)
    data = CodeLines()
    print(f"{len(data.lines):,} lines in {len(data):,} blocks")
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=12, learning_rate=1e-3, use_cpu=True,
        dataloader_num_workers=2, logging_steps=40, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False)
    InOrder(Bag(), arguments, train_dataset=data, callbacks=[LossWindow()]).train()
