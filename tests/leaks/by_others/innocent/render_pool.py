"""Shape classifier whose images are drawn ahead of use by a pool of threads."""
import tempfile
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

SIDE, BATCH, AHEAD = 32, 16, 4
scratch = threading.local()


def draw(seed):
    if not hasattr(scratch, "grid"):
        axis = np.arange(SIDE * 4)
        scratch.grid = np.stack(np.meshgrid(axis, axis))
        scratch.canvas = np.zeros((SIDE * 4, SIDE * 4), dtype=np.float32)
    rng = np.random.default_rng(seed)
    images, labels = np.empty((BATCH, 1, SIDE, SIDE), dtype=np.float32), rng.integers(0, 2, BATCH)
    for i, label in enumerate(labels):
        cx, cy, r = rng.uniform(50, 78), rng.uniform(50, 78), rng.uniform(15, 40)
        dx, dy = abs(scratch.grid[0] - cx), abs(scratch.grid[1] - cy)
        inside = np.hypot(dx, dy) < r if label else np.maximum(dx, dy) < r * 0.9
        np.copyto(scratch.canvas, inside)
        images[i, 0] = scratch.canvas.reshape(SIDE, 4, SIDE, 4).mean((1, 3))
    return images, labels


class Rendered(torch.utils.data.IterableDataset):
    def __init__(self, pool):
        self.pool = pool

    def __iter__(self):
        pending, seed = deque(), 0
        while True:
            while len(pending) < AHEAD:
                pending.append(self.pool.submit(draw, seed))
                seed += 1
            images, labels = pending.popleft().result()
            for image, label in zip(images, labels):
                yield {"x": torch.from_numpy(image), "labels": int(label)}


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 5, stride=2), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2), nn.ReLU(),
                                 nn.Flatten(), nn.Linear(8 * 6 * 6, 2))

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


if __name__ == "__main__":
    set_seed(7)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=240, per_device_train_batch_size=BATCH,
                             learning_rate=2e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=120, disable_tqdm=True, remove_unused_columns=False)
    with ThreadPoolExecutor(2) as pool:
        result = Trainer(model=ConvNet(), args=args, train_dataset=Rendered(pool)).train()
    print(f"final loss {result.training_loss:.4f}")
