"""Lightning callback that writes activation histograms from a background thread."""
import json
import logging
import os
import pickle
import queue
import tempfile
import threading
import time
import warnings

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

CONTEXT = 16
BATCH = 64
STEPS = 400


class Bytes(Dataset):
    def __init__(self):
        self.ids = torch.tensor(list(open(pickle.__file__, "rb").read())) % 128

    def __len__(self):
        return len(self.ids) - CONTEXT

    def __getitem__(self, i):
        return self.ids[i:i + CONTEXT], self.ids[(i + CONTEXT) % len(self.ids)]


class LitMLP(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(128, 24)
        self.inner = nn.Linear(24 * CONTEXT, 384)
        self.head = nn.Linear(384, 128)
        self.last_hidden = None

    def training_step(self, batch, _):
        x, y = batch
        hidden = F.gelu(self.inner(self.emb(x).flatten(1)))
        self.last_hidden = hidden.detach()
        return F.cross_entropy(self.head(hidden), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class HistogramWriter(L.Callback):
    def __init__(self, folder):
        self.path = os.path.join(folder, "hist.jsonl")
        self.jobs = queue.Queue()
        self.written = 0
        self.thread = threading.Thread(target=self.work, daemon=True)

    def on_train_start(self, trainer, module):
        self.thread.start()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.jobs.put((trainer.global_step, module.last_hidden))

    def work(self):
        while True:
            step, hidden = self.jobs.get()
            with open(self.path, "a") as f:
                counts = torch.histc(hidden, bins=40).int().tolist()
                f.write(json.dumps({"step": step, "counts": counts}) + "\n")
                f.flush()
                os.fsync(f.fileno())
            time.sleep(0.2)    # stay below the rate limit of the tracking server
            self.written += 1

    def on_train_end(self, trainer, module):
        print("histograms written", self.written, "of", trainer.global_step)


def main():
    L.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as out:
        trainer = L.Trainer(max_steps=STEPS, accelerator="cpu", logger=False,
                            enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False, default_root_dir=out,
                            callbacks=[HistogramWriter(out)])
        trainer.fit(LitMLP(), DataLoader(Bytes(), batch_size=BATCH, shuffle=True))
        time.sleep(0.3)


if __name__ == "__main__":
    main()
