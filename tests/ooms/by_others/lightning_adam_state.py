"""Hashed n-gram embedding classifier: one big table, the rest is tiny."""
import logging
import os
import glob
import resource
import tempfile
import warnings
import zlib

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

BUCKETS = 2**17
DIM = 128
OPTIMIZER = "adamw"        # or "sgd"
BATCH = 16
STEPS = 8
ROOM_MIB = 150


def set_limit(mib):
    line = next(s for s in open("/proc/self/status") if s.startswith("VmData"))
    n = int(line.split()[1]) * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (n, n))


class LitBag(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(BUCKETS, DIM, mode="mean")
        self.head = nn.Linear(DIM, 2)

    def training_step(self, batch, _):
        x, y = batch
        return F.cross_entropy(self.head(self.table(x)), y)

    def on_train_start(self):
        set_limit(ROOM_MIB)

    def configure_optimizers(self):
        if OPTIMIZER == "sgd":
            return torch.optim.SGD(self.parameters(), lr=0.5)
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def data():
    xs, ys = [], []
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:30]:
        for line in open(path, encoding="utf-8", errors="replace"):
            words = line.split()
            if len(words) >= 4:
                xs.append([zlib.crc32(w.encode()) % BUCKETS for w in words[:4]])
                ys.append(int("self" in line))
    return TensorDataset(torch.tensor(xs), torch.tensor(ys))


def main():
    L.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as out:
        L.Trainer(max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False,
                  default_root_dir=out).fit(LitBag(), DataLoader(data(), batch_size=BATCH))
    print("finished")


if __name__ == "__main__":
    main()
