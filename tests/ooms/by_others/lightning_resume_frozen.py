"""Head on frozen embeddings: the first run is fine, resuming from its checkpoint is not."""
import gc
import logging
import os
import resource
import tempfile
import typing
import warnings
import zlib

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

BUCKETS = 2**18
DIM = 128
SAVE_FROZEN = True         # False: leave the frozen table out of the checkpoint
BATCH = 16
STEPS = 20
ROOM_MIB = 90


def set_limit(mib):
    line = next(s for s in open("/proc/self/status") if s.startswith("VmData"))
    n = int(line.split()[1]) * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (n, n))


class LitHead(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)       # stands for downloaded word vectors: always the same table
        self.table = nn.EmbeddingBag(BUCKETS, DIM).requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 2))
        self.strict_loading = SAVE_FROZEN

    def training_step(self, batch, _):
        x, y = batch
        return F.cross_entropy(self.head(self.table(x)), y)

    def on_save_checkpoint(self, checkpoint):
        if not SAVE_FROZEN:
            checkpoint["state_dict"].pop("table.weight")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.head.parameters(), lr=1e-3)


def data():
    xs, ys = [], []
    for line in open(typing.__file__, encoding="utf-8"):
        words = line.split()
        if len(words) >= 4:
            xs.append([zlib.crc32(w.encode()) % BUCKETS for w in words[:4]])
            ys.append(int("self" in line))
    return DataLoader(TensorDataset(torch.tensor(xs), torch.tensor(ys)), batch_size=BATCH)


def trainer(steps, folder):
    return L.Trainer(max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False,
                     default_root_dir=folder)


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.ckpt")
        first = trainer(STEPS, folder)
        first.fit(LitHead(), data())
        first.save_checkpoint(path)
        print("saved", os.path.getsize(path) // 2**20, "MiB", flush=True)
        del first
        gc.collect()
        model = LitHead()
        set_limit(ROOM_MIB)
        trainer(2 * STEPS, folder).fit(model, data(), ckpt_path=path)
    print("finished")


if __name__ == "__main__":
    main()
