"""LSTM over parallel streams of bytes; a fixed monitor stream is read on beside it and never starts anew.

After: https://github.com/Lightning-AI/pytorch-lightning/issues/655
"""
import collections
import inspect
import logging
import tempfile
import warnings

import ipaddress
import lightning as L
import mailbox
import pydoc
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
STREAMS, STEP, WIDTH = 16, 24, 64


def encode(*modules):
    text = "".join(inspect.getsource(module) for module in modules)
    return torch.tensor([min(ord(c), 127) for c in text])


class Streams(IterableDataset):
    """Consecutive pieces of a text that is cut into parallel streams, around and around."""

    def __init__(self, text, streams):
        self.rows = text[: len(text) // streams * streams].view(streams, -1)

    def __iter__(self):
        place = 0
        while True:
            if place + STEP + 1 > self.rows.shape[1]:
                place = 0
            piece = self.rows[:, place:place + STEP + 1]
            yield piece[:, :-1], piece[:, 1:]
            place += STEP


class StreamModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(128, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 128)
        self.state = None

    def forward(self, ids, state=None):
        inner, state = self.lstm(self.embed(ids), state)
        return self.head(inner), state

    def training_step(self, batch, index):
        x, y = batch
        logits, state = self(x, self.state)
        self.state = tuple(part.detach() for part in state)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Monitor(L.Callback):
    """Reads one stream piece by piece, as in production, and smooths its surprise."""

    def __init__(self, text, keep=0.95):
        self.source = iter(Streams(text, streams=4))
        self.keep = keep
        self.state = None
        self.surprise = None
        self.curve = collections.deque(maxlen=25)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        x, y = next(self.source)
        logits, self.state = module(x, self.state)
        surprise = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).item()
        self.surprise = surprise if self.surprise is None else self.keep * self.surprise + (1 - self.keep) * surprise
        if trainer.global_step % 16 == 0:
            self.curve.append(round(self.surprise, 3))
        if trainer.global_step % 80 == 0:
            norm = self.state[0].norm().item()
            print(f"step {trainer.global_step}: surprise {self.surprise:.3f}, state {norm:.2f}", flush=True)


def main():
    L.seed_everything(1, verbose=False)
    monitor = Monitor(encode(ipaddress))
    trainer = L.Trainer(
        max_steps=400, accelerator="cpu", callbacks=[monitor], gradient_clip_val=1.0, enable_checkpointing=False,
        logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=tempfile.mkdtemp())
    trainer.fit(StreamModel(), DataLoader(Streams(encode(pydoc, mailbox), STREAMS), batch_size=None))
    print("surprise over the run", list(monitor.curve))


if __name__ == "__main__":
    main()
