"""Byte model on a large file that is mapped into memory and read from one end to the other.

After: https://github.com/karpathy/nanoGPT/issues/287
"""
import pathlib
import sysconfig
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

LENGTH, CHUNK = 64, 16_384
STEPS, BATCH = 400, 16


def write_corpus(path, size):
    """The standard library's sources, again and again, until the file is long enough."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    written = 0
    with path.open("wb") as file:
        while written < size:
            for source in sorted(library.glob("*.py")):
                written += file.write(source.read_bytes())
                if written >= size:
                    break


class Mapped(Dataset):
    """Chunks of the file; of each chunk the first bytes are the sample, the rest is only summed up."""

    def __init__(self, path):
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        self.checksum = 0

    def __len__(self):
        return len(self.data) // CHUNK

    def __getitem__(self, index):
        chunk = self.data[index * CHUNK:(index + 1) * CHUNK]
        self.checksum = (self.checksum + int(chunk.sum(dtype=np.int64))) % 65_521
        row = torch.from_numpy(chunk[:LENGTH].astype(np.int64) % 128)
        return {"ids": row, "labels": row}


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 128)

    def forward(self, ids, labels=None):
        inner, _ = self.body(self.embed(ids[:, :-1]))
        return {"loss": nn.functional.cross_entropy(self.head(inner).flatten(0, 1), labels[:, 1:].flatten())}


class InOrder(Trainer):
    def _get_train_sampler(self, *unused):
        return SequentialSampler(self.train_dataset)


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, train_dataloader=None, **kwargs):
        print(state.global_step, logs.get("loss"), "checksum", train_dataloader.dataset.checksum)


def main():
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "corpus.bin"
        write_corpus(path, CHUNK * BATCH * STEPS)
        arguments = TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=2e-3, use_cpu=True,
            logging_steps=80, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False)
        InOrder(Model(), arguments, train_dataset=Mapped(path), callbacks=[Report()]).train()


if __name__ == "__main__":
    main()
