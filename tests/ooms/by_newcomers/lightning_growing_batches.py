"""Contrastive learning of image patches in Lightning; the batch grows with the epochs, the loss is over all pairs."""

import logging
import resource
import warnings
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 250
FIRST_BATCH = 32
GROWTH = 2
PATCHES = 16
EPOCHS = 5

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def info_nce(first, second):
    """Each patch against all patches of the batch."""
    z = nn.functional.normalize(torch.cat([first, second]), dim=1)
    similarity = z @ z.T / 0.1
    similarity = similarity.masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    num = len(first)
    return nn.functional.cross_entropy(similarity, torch.arange(2 * num).roll(num))


class Contrast(L.LightningModule):
    def __init__(self, images):
        super().__init__()
        self.images = images
        self.net = nn.Sequential(nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, 64))

    def train_dataloader(self):
        size = FIRST_BATCH * GROWTH**self.trainer.current_epoch
        return DataLoader(TensorDataset(self.images), batch_size=size, shuffle=True, drop_last=True)

    def training_step(self, batch, batch_idx):
        (images,) = batch
        patches = images.reshape(-1, 192)
        first = self.net(patches + 0.1 * torch.randn_like(patches))
        second = self.net(patches + 0.1 * torch.randn_like(patches))
        return info_nce(first, second)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    model = Contrast(torch.rand(512, PATCHES, 192))
    small_machine(MEMORY)
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        reload_dataloaders_every_n_epochs=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    print("finished")


if __name__ == "__main__":
    main()
