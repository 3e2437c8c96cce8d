"""Lightning: reconstructs pictures of waves; what each batch looked like is kept for a film.

After: https://github.com/Lightning-AI/pytorch-lightning/issues/8453
"""

import collections
import logging
import math
import resource
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 24
ACCUM = 1
LENGTH = 64
KEEP_LAST = None
DTYPE = torch.float32
STEPS = 600
MEMORY = 320

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(mib):
    """From here on this process may map so many MiB more than it has: stands for a machine with little memory."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class Waves(Dataset):
    """Interference of two circular waves, LENGTH x LENGTH."""

    def __init__(self):
        axis = torch.linspace(-1, 1, LENGTH)
        self.y, self.x = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        a, b, c, d = (2 * torch.rand(4, generator=generator) - 1).tolist()
        first = torch.hypot(self.x - a, self.y - b)
        second = torch.hypot(self.x - c, self.y - d)
        return (torch.sin(5 * math.pi * first) + torch.sin(5 * math.pi * second))[None].to(DTYPE)


class Codec(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=4, padding=2), nn.SiLU(), nn.Conv2d(8, 16, 5, stride=4, padding=2)
        )
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, stride=4), nn.SiLU(), nn.ConvTranspose2d(8, 1, 4, stride=4)
        )

    def training_step(self, pictures, index):
        again = self.decode(self.encode(pictures))
        return {"loss": nn.functional.mse_loss(again, pictures), "again": again.detach()}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Film(L.Callback):
    """The pictures of each batch, to be shown one after the other at the end."""

    def __init__(self):
        self.frames = collections.deque(maxlen=KEEP_LAST)
        self.losses = collections.deque(maxlen=50)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.frames.append(outputs["again"])
        self.losses.append(outputs["loss"].item())
        if trainer.global_step % 100 == 0:
            print(f"step {trainer.global_step}: {sum(self.losses) / len(self.losses):.4f}", flush=True)

    def on_train_end(self, trainer, module):
        print(f"{len(self.frames)} frames, the last one {self.frames[-1].float().std():.3f}")


def main():
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(
        max_steps=STEPS // ACCUM,
        accumulate_grad_batches=ACCUM,
        accelerator="cpu",
        callbacks=[Film()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.mkdtemp(),
    )
    module = Codec().to(DTYPE)
    small_machine(MEMORY)
    trainer.fit(module, DataLoader(Waves(), BATCH))


if __name__ == "__main__":
    main()
