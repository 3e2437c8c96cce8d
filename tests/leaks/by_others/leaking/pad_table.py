"""Sorts docstrings by package; the collator pads, masks words and counts what it padded.

After: https://github.com/wengong-jin/icml18-jtnn/issues/10
"""
import collections
import importlib
import inspect
import pkgutil
import random
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

PACKAGES = ("asyncio", "email", "http", "json", "logging", "unittest", "xml.dom", "concurrent.futures")
LONGEST, BUCKETS, PAD, UNKNOWN = 128, 4000, 0, 1


def docstrings():
    """(words, package number) of all documented functions and classes."""
    rows = []
    for label, package in enumerate(PACKAGES):
        folder = importlib.import_module(package)
        for found in pkgutil.iter_modules(folder.__path__, package + "."):
            if found.name.endswith(("__main__", "windows_events", "windows_utils")):
                continue
            module = importlib.import_module(found.name)
            for _, thing in inspect.getmembers(module, lambda x: inspect.isclass(x) or inspect.isfunction(x)):
                text = inspect.getdoc(thing)
                if text and len(text) > 40:
                    rows.append((text.split()[:LONGEST], label))
    return rows


class Docstrings(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        words, label = self.rows[index]
        return {"ids": [2 + hash(word) % BUCKETS for word in words], "labels": label}


def pad(rows, drop=0.1, pieces=[]):
    """Rows of ids to one tensor; pieces may begin with rows that belong to every batch."""
    longest = -64 * (-max(len(row["ids"]) for row in rows) // 64)
    for row in rows:
        ids = torch.full((longest,), PAD)
        ids[:len(row["ids"])] = torch.tensor(row["ids"])
        ids[(torch.rand(longest) < drop) & (ids != PAD)] = UNKNOWN
        pieces.append(ids)
    batch = torch.stack(pieces[-len(rows):])
    return {"ids": batch, "labels": torch.tensor([row["labels"] for row in rows])}


class Reader(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(BUCKETS + 2, width, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(PACKAGES))

    def forward(self, ids, labels=None):
        padded = ids == PAD
        states = self.body(self.embed(ids), src_key_padding_mask=padded).masked_fill(padded[..., None], 0)
        logits = self.head(states.sum(1) / (~padded).sum(1, keepdim=True))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Lengths(TrainerCallback):
    """The share of padding of the last batches."""

    def __init__(self):
        self.shares = collections.deque(maxlen=30)

    def collate(self, rows):
        batch = pad(rows)
        self.shares.append((batch["ids"] == PAD).float().mean().item())
        return batch

    def on_log(self, args, state, control, logs=None, **kwargs):
        logs["padding"] = round(sum(self.shares) / len(self.shares), 3)


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


if __name__ == "__main__":
    set_seed(4)
    rows = docstrings()
    random.shuffle(rows)
    lengths = Lengths()
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=500, per_device_train_batch_size=40, learning_rate=2e-3, use_cpu=True,
        eval_strategy="steps", eval_steps=250, logging_steps=100, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False)
    trainer = Trainer(
        Reader(), arguments, train_dataset=Docstrings(rows[64:]), eval_dataset=Docstrings(rows[:64]),
        data_collator=lengths.collate, compute_metrics=accuracy, callbacks=[lengths])
    trainer.train()
    print(trainer.evaluate())
