"""Lightning: the batch is enlarged in steps instead of lowering the learning rate.

After: https://github.com/Lightning-AI/pytorch-lightning/issues/2312
"""
import collections
import logging
import math
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
STEPS = 480
RAMP = ((0, 16), (80, 32), (160, 64), (240, 128), (320, 192))  # from this step on, rows a batch


class Fields(Dataset):
    """Sums of plane waves on a grid; wanted are their directions."""

    def __init__(self, side=24):
        self.side = side
        axis = torch.linspace(-1, 1, side)
        self.y, self.x = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        angle = 2 * math.pi * torch.rand(1, generator=generator)
        wave = torch.sin(9 * (self.x * angle.cos() + self.y * angle.sin()) + torch.rand(1, generator=generator))
        noise = 0.3 * torch.randn(self.side, self.side, generator=generator)
        return (wave + noise)[None], torch.cat([(2 * angle).cos(), (2 * angle).sin()])


class Ramp(Sampler):
    """Batches of numbers, larger and larger."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for step in range(STEPS):
            rows = max(size for start, size in RAMP if start <= step)
            yield torch.randint(10**6, (rows,), generator=generator).tolist()

    def __len__(self):
        return STEPS


class Compass(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 12, 5, stride=2), nn.GELU(), nn.Conv2d(12, 24, 5, stride=2), nn.GELU(), nn.Flatten(),
            nn.LazyLinear(64), nn.GELU(), nn.Linear(64, 2))
        self.net(torch.zeros(1, 1, 24, 24))

    def training_step(self, batch, index):
        fields, directions = batch
        loss = nn.functional.mse_loss(self.net(fields), directions)
        self.log_dict({"loss": loss, "rows": float(len(fields))}, batch_size=len(fields))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Printer(L.Callback):
    def __init__(self):
        self.losses = collections.deque(maxlen=30)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.losses.append(outputs["loss"].item())
        if trainer.global_step % 80 == 0:
            mean = sum(self.losses) / len(self.losses)
            print(f"step {trainer.global_step}: {mean:.4f}, {len(batch[0])} rows", flush=True)


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[Printer()], enable_checkpointing=False, logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tempfile.mkdtemp())
    trainer.fit(Compass(), DataLoader(Fields(), batch_sampler=Ramp()))
