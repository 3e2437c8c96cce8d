"""Validation keeps all logits until the end of its epoch, then scores and drops them."""
import logging
import socket
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

SEQ = 32
STEPS = 360
EVERY = 45


class LitGRU(L.LightningModule):
    def __init__(self, dim=40):
        super().__init__()
        self.emb = nn.Embedding(128, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, 128)
        self.predictions = []
        self.scores = []

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])

    def training_step(self, batch, _):
        x = batch[0]
        return F.cross_entropy(self(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    def validation_step(self, batch, _):
        x = batch[0]
        self.predictions.append((self(x[:, :-1]), x[:, 1:]))

    def on_validation_epoch_end(self):
        logits = torch.cat([p for p, _ in self.predictions])
        target = torch.cat([t for _, t in self.predictions])
        confidence, top = logits.softmax(-1).max(-1)
        right = (top == target).float()
        self.scores.append((right.mean().item(), (confidence - right).abs().mean().item()))
        self.predictions.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main():
    L.seed_everything(0, verbose=False)
    ids = torch.tensor([min(ord(c), 127) for c in open(socket.__file__).read()])
    at = torch.randint(0, len(ids) - SEQ - 1, (8 * STEPS + 800,))
    rows = torch.stack([ids[i:i + SEQ + 1] for i in at])
    train = DataLoader(TensorDataset(rows[:8 * STEPS]), batch_size=8)
    val = DataLoader(TensorDataset(rows[8 * STEPS:]), batch_size=50)
    model = LitGRU()
    with tempfile.TemporaryDirectory() as out:
        L.Trainer(max_steps=STEPS, val_check_interval=EVERY, accelerator="cpu", logger=False,
                  enable_checkpointing=False, enable_progress_bar=False, num_sanity_val_steps=0,
                  enable_model_summary=False, default_root_dir=out).fit(model, train, val)
    print("accuracy, calibration", [tuple(round(v, 3) for v in s) for s in model.scores])


if __name__ == "__main__":
    main()
