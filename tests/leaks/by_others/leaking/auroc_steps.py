"""Marks code tokens that open a nested block; the ranking of the scores is measured while it trains.

After: https://github.com/Lightning-AI/torchmetrics/issues/1949
"""
import collections
import inspect
import logging
import tempfile
import warnings

import ftplib
import imaplib
import lightning as L
import poplib
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
LENGTH, BATCH = 96, 32


def bytes_and_marks(*modules):
    """Rows of bytes; a mark is set where the next line is indented deeper."""
    codes, marks = [], []
    for module in modules:
        lines = inspect.getsource(module).splitlines(keepends=True)
        for line, following in zip(lines, lines[1:] + [""]):
            deeper = len(following) - len(following.lstrip()) > len(line) - len(line.lstrip())
            codes += [min(ord(c), 127) for c in line]
            marks += [int(deeper)] * len(line)
    rows = len(codes) // LENGTH
    return (torch.tensor(column[:rows * LENGTH]).view(rows, LENGTH) for column in (codes, marks))


class Marker(L.LightningModule):
    def __init__(self, width=40):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.body = nn.GRU(width, width, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, 1)
        self.train_auroc = torchmetrics.classification.BinaryAUROC()
        self.val_auroc = torchmetrics.classification.BinaryAUROC()
        self.val_loss = torchmetrics.MeanMetric()

    def forward(self, ids):
        inner, _ = self.body(self.embed(ids))
        return self.head(inner).squeeze(-1)

    def training_step(self, batch, index):
        ids, marks = batch
        logits = self(ids)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, marks.float())
        self.train_auroc.update(logits.detach(), marks)
        return loss

    def on_train_end(self):
        print(f"ranking of the scores in training {self.train_auroc.compute():.4f}")

    def validation_step(self, batch, index):
        ids, marks = batch
        logits = self(ids)
        self.val_loss(nn.functional.binary_cross_entropy_with_logits(logits, marks.float()))
        self.val_auroc.update(logits, marks)

    def on_validation_epoch_end(self):
        self.log("val_auroc", self.val_auroc.compute())
        self.log("val_loss", self.val_loss)
        self.val_auroc.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


class Printer(L.Callback):
    """A line per evaluation, and the best of the last ones."""

    def __init__(self):
        self.recent = collections.deque(maxlen=5)

    def on_validation_end(self, trainer, module):
        seen = {name: round(float(value), 4) for name, value in trainer.callback_metrics.items()}
        self.recent.append(seen["val_auroc"])
        print(trainer.global_step, seen, "best of the last", max(self.recent), flush=True)


def main():
    L.seed_everything(0, verbose=False)
    train = DataLoader(TensorDataset(*bytes_and_marks(imaplib, ftplib)), BATCH, shuffle=True, drop_last=True)
    held_out = DataLoader(TensorDataset(*bytes_and_marks(poplib)), 64)
    trainer = L.Trainer(
        max_steps=450, accelerator="cpu", val_check_interval=50, check_val_every_n_epoch=None, callbacks=[Printer()],
        num_sanity_val_steps=0, enable_checkpointing=False, logger=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=1.0, default_root_dir=tempfile.mkdtemp())
    trainer.fit(Marker(), train, held_out)


if __name__ == "__main__":
    main()
