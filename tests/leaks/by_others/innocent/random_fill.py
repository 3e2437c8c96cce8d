"""Classifies sources by module; features of a file are computed when it is drawn for the first time.

After: https://github.com/Project-MONAI/MONAI/issues/5930
"""
import collections
import pathlib
import sysconfig
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

PLACES, BANDS = 160, 96


class Sources(Dataset):
    """Files of the standard library; a sample is one file at another place."""

    def __init__(self, limit=900):
        library = pathlib.Path(sysconfig.get_paths()["stdlib"])
        found = [p for p in sorted(library.rglob("*.py")) if "site-packages" not in p.parts and p.stat().st_size > 2000]
        self.paths = found[:limit]
        folders = sorted({path.parent.name for path in self.paths})
        self.labels = [folders.index(path.parent.name) for path in self.paths]
        self.classes = len(folders)
        self.features = {}
        self.hits = collections.Counter()

    def __len__(self):
        return len(self.paths) * 20

    def compute(self, path):
        """Histogram of bytes around each of some places, [PLACES, BANDS]."""
        raw = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        starts = np.linspace(0, len(raw) - 200, PLACES).astype(int)
        rows = [np.bincount(raw[s:s + 200] % BANDS, minlength=BANDS) for s in starts]
        return torch.from_numpy(np.stack(rows).astype(np.float32) / 200)

    def __getitem__(self, index):
        number = index % len(self.paths)
        known = number in self.features
        self.hits[known] += 1
        if not known:
            self.features[number] = self.compute(self.paths[number])
        return {"features": self.features[number], "labels": self.labels[number]}


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.rows = nn.Sequential(nn.Linear(BANDS, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.head = nn.Linear(96, classes)

    def forward(self, features, labels=None):
        logits = self.head(self.rows(features).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Hits(TrainerCallback):
    def on_log(self, args, state, control, logs=None, train_dataloader=None, **kwargs):
        data = train_dataloader.dataset
        print(state.global_step, logs.get("loss"), f"{len(data.features)} files known, {dict(data.hits)}")
        data.hits.clear()


if __name__ == "__main__":
    set_seed(1)
    data = Sources()
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=500, per_device_train_batch_size=10, learning_rate=1e-3, use_cpu=True,
        logging_steps=100, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False)
    Trainer(Net(data.classes), arguments, train_dataset=data, callbacks=[Hits()]).train()
