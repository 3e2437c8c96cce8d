"""A Trainer whose data workers enlarge an image before they cut crops from it; one of the images is a scan."""

import resource
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

MEMORY = 500
BATCH = 8
WORKERS = 2
ENLARGE = 4
MAX_SIDE = None
STEPS = 20


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


class Crops(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def read(self, index):
        draw = np.random.default_rng(index)
        side = 1400 if index == 93 else int(draw.integers(96, 160))
        return draw.integers(0, 256, (side, side, 3), dtype=np.uint8)[:MAX_SIDE, :MAX_SIDE]

    def __getitem__(self, index):
        image = self.read(index) / 255.0
        image = image.repeat(ENLARGE, axis=0).repeat(ENLARGE, axis=1)
        image = (image - image.mean((0, 1))) / image.std((0, 1))
        crops = [image[at : at + 48, at : at + 48] for at in (0, 16, 32, 48)]
        return {"x": torch.from_numpy(np.stack(crops)).float().flatten(1), "labels": index % 10}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(48 * 48 * 3, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(self.layers(x).mean(1), labels)}


class InOrder(Trainer):
    def _get_train_sampler(self, *unused):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_num_workers=WORKERS,
    )
    trainer = InOrder(Net(), arguments, train_dataset=Crops())
    small_machine(MEMORY)
    trainer.train()
    print("finished")


if __name__ == "__main__":
    main()
