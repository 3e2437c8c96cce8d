"""A detector in Lightning: each anchor is compared with each box of an image; a few images are crowds."""

import logging
import resource
import warnings
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEMORY = 330
BATCH = 4
ACCUM = 1
SIDE = 128
ANCHORS = 3 * 32 * 32
STEPS = 40

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Pictures(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        num = 4_000 if index in (91, 250) else 5 + index % 30
        corner, size = torch.rand(2, num, 2, generator=generator)
        return torch.rand(3, SIDE, SIDE, generator=generator), torch.cat([corner, corner + size / 10], dim=1)


def box_iou(boxes1, boxes2):
    area1 = (boxes1[:, 2:] - boxes1[:, :2]).prod(1)
    area2 = (boxes2[:, 2:] - boxes2[:, :2]).prod(1)
    top_left = torch.max(boxes1[:, None, :2], boxes2[:, :2])
    bottom_right = torch.min(boxes1[:, None, 2:], boxes2[:, 2:])
    inter = (bottom_right - top_left).clamp(min=0).prod(2)
    return inter / (area1[:, None] + area2 - inter)


class Detector(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 3 * 5, 3, 2, 1))
        corner, size = torch.rand(2, ANCHORS, 2, generator=torch.Generator().manual_seed(1))
        self.register_buffer("anchors", torch.cat([corner, corner + size / 10], dim=1))

    def training_step(self, batch, batch_idx):
        images, targets = batch
        out = self.body(images).reshape(len(images), ANCHORS, 5)
        losses = []
        for scores, boxes in zip(out, targets, strict=True):
            overlap, matched = box_iou(self.anchors, boxes).max(dim=1)
            offsets = boxes[matched] - self.anchors
            losses.append(nn.functional.binary_cross_entropy_with_logits(scores[:, 0], (overlap > 0.3).float()))
            losses.append(nn.functional.smooth_l1_loss(scores[:, 1:], offsets))
        return torch.stack(losses).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def collate(examples):
    return torch.stack([image for image, _ in examples]), [boxes for _, boxes in examples]


def main():
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    small_machine(MEMORY)
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        accumulate_grad_batches=ACCUM,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Detector(), DataLoader(Pictures(), batch_size=BATCH, collate_fn=collate))
    print("finished")


if __name__ == "__main__":
    main()
