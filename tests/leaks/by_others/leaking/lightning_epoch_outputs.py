"""Migrated from training_epoch_end to Lightning 2: collect the outputs ourselves."""
import collections
import email.message
import logging
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
VOCAB = 128
BATCH = 8
EPOCHS = 6
ROWS = 480


class LitLM(L.LightningModule):
    def __init__(self, dim=40):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(VOCAB, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)
        self.train_outputs = []
        self.val_outputs = []
        self.speed = collections.deque(maxlen=20)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])

    def training_step(self, batch, _):
        (x,) = batch
        logits = self(x[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        self.train_outputs.append({"logits": logits.detach(), "target": x[:, 1:]})
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        (x,) = batch
        logits = self(x[:, :-1])
        self.val_outputs.append((logits.argmax(-1) == x[:, 1:]).float().mean())

    def on_train_epoch_end(self):
        latest = self.train_outputs[-ROWS // BATCH:]
        hits = torch.cat([(o["logits"].argmax(-1) == o["target"]).flatten() for o in latest])
        self.speed.append(hits.float().mean().item())
        print("epoch", self.current_epoch, "train accuracy", round(self.speed[-1], 4))

    def on_validation_epoch_end(self):
        self.log("val_acc", torch.stack(self.val_outputs).mean())
        self.val_outputs.clear()

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [opt], [torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)]


def main():
    L.seed_everything(0, verbose=False)
    text = open(email.message.__file__, encoding="utf-8").read()
    ids = torch.tensor([min(ord(c), 127) for c in text])
    at = torch.randint(0, len(ids) - SEQ - 1, (ROWS + 64,))
    rows = torch.stack([ids[i:i + SEQ + 1] for i in at])
    train = DataLoader(TensorDataset(rows[:ROWS]), batch_size=BATCH, shuffle=True)
    val = DataLoader(TensorDataset(rows[ROWS:]), batch_size=16)
    with tempfile.TemporaryDirectory() as out:
        trainer = L.Trainer(max_epochs=EPOCHS, accelerator="cpu", logger=False,
                            enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False, default_root_dir=out)
        trainer.fit(LitLM(), train, val)
        print("val", trainer.callback_metrics["val_acc"].item())


if __name__ == "__main__":
    main()
