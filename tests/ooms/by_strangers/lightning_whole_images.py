"""Lightning trains on crops of 96 x 96 and validates on whole images; one of them is a panorama."""

import logging
import resource
import warnings
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEMORY = 500
BATCH = 8
VAL_BATCH = 1
CROP = 96
MAX_SIDE = None
CLASSES = 40
EPOCHS = 2

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


class Crops(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.rand(3, CROP, CROP, generator=draw), torch.randint(CLASSES, (CROP, CROP), generator=draw)


class Whole(Dataset):
    sizes = ((160, 200), (180, 160), (200, 200), (240, 160), (900, 2400), (200, 180))

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        height, width = self.sizes[index]
        image, mask = torch.rand(3, height, width), torch.randint(CLASSES, (height, width))
        return image[:, :MAX_SIDE, :MAX_SIDE], mask[:MAX_SIDE, :MAX_SIDE]


class Segmenter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU())
        self.classes = nn.Conv2d(24, CLASSES, 1)

    def forward(self, images):
        return self.classes(self.stem(images))

    def training_step(self, batch, batch_idx):
        images, masks = batch
        return nn.functional.cross_entropy(self(images), masks)

    def validation_step(self, batch, batch_idx):
        images, masks = batch
        found = self(images).softmax(1).argmax(1)
        self.log("val_hit", (found == masks).float().mean(), batch_size=len(images))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    model = Segmenter()
    small_machine(MEMORY)
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Crops(), batch_size=BATCH, shuffle=True), DataLoader(Whole(), batch_size=VAL_BATCH))
    print("finished")


if __name__ == "__main__":
    main()
