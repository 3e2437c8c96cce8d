"""Segments rows of text into code, comment and string; confusion is computed after each evaluation.

After: https://github.com/Lightning-AI/pytorch-lightning/pull/16520
"""
import io
import logging
import tempfile
import tokenize
import warnings
import inspect

import lightning as L
import plistlib
import torch
import turtle
import typing
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
KINDS = ("code", "comment", "string")
LENGTH = 64


def segments(source):
    """Rows of bytes, and for each byte the number of its kind."""
    lines = source.splitlines(keepends=True)
    kinds = [[0] * len(line) for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = {tokenize.COMMENT: 1, tokenize.STRING: 2}.get(token.type)
        if kind is None:
            continue
        for row in range(token.start[0] - 1, token.end[0]):
            first = token.start[1] if row == token.start[0] - 1 else 0
            last = token.end[1] if row == token.end[0] - 1 else len(lines[row])
            kinds[row][first:last] = [kind] * (last - first)
    codes = torch.tensor([min(ord(c), 127) for line in lines for c in line])
    labels = torch.tensor([kind for row in kinds for kind in row])
    size = len(codes) // LENGTH * LENGTH
    return codes[:size].view(-1, LENGTH), labels[:size].view(-1, LENGTH)


class Segmenter(L.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.convs = nn.Sequential(
            nn.Conv1d(width, width, 9, padding=4), nn.ReLU(), nn.Conv1d(width, width, 9, padding=8, dilation=2),
            nn.ReLU(), nn.Conv1d(width, len(KINDS), 1))
        self.register_buffer("weights", torch.tensor([1.0, 2.0, 1.5]))
        self.validation_outputs = []

    def forward(self, ids):
        return self.convs(self.embed(ids).transpose(1, 2))

    def training_step(self, batch, index):
        ids, kinds = batch
        loss = nn.functional.cross_entropy(self(ids), kinds, weight=self.weights)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        ids, kinds = batch
        logits = self(ids)
        self.log("val_loss", nn.functional.cross_entropy(logits, kinds))
        self.validation_outputs.append({"probabilities": logits.softmax(1), "kinds": kinds})

    def on_validation_epoch_end(self):
        count = self.trainer.num_val_batches[0]
        recent = self.validation_outputs[-count:]
        guess = torch.cat([output["probabilities"] for output in recent]).argmax(1).flatten()
        truth = torch.cat([output["kinds"] for output in recent]).flatten()
        confusion = torch.bincount(truth * 3 + guess, minlength=9).view(3, 3)
        recall = confusion.diag() / confusion.sum(1).clamp(min=1)
        self.log_dict({f"recall_{kind}": value for kind, value in zip(KINDS, recall)})

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class Table(L.Callback):
    def on_validation_end(self, trainer, module):
        if trainer.global_step % 100 == 0:
            row = {name: f"{float(value):.3f}" for name, value in trainer.callback_metrics.items()}
            print(trainer.global_step, row, flush=True)


if __name__ == "__main__":
    L.seed_everything(2, verbose=False)
    train = DataLoader(
        TensorDataset(*segments(inspect.getsource(turtle) + inspect.getsource(typing))), 16, shuffle=True)
    held_out = DataLoader(TensorDataset(*segments(inspect.getsource(plistlib))), 64)
    trainer = L.Trainer(
        max_steps=500, accelerator="cpu", val_check_interval=5, check_val_every_n_epoch=None, logger=False,
        num_sanity_val_steps=0, limit_val_batches=4, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tempfile.mkdtemp(),
        callbacks=[Table(), EarlyStopping("val_loss", patience=1000)])
    trainer.fit(Segmenter(), train, held_out)
