"""Digit-like classification with an auxiliary rotation-prediction task on unlabelled images."""
import itertools
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

SIZE = 32


def glyph(cls, rng):
    im = np.zeros((SIZE, SIZE), np.float32)
    r = 6 + cls
    yy, xx = np.ogrid[:SIZE, :SIZE]
    cy, cx = 16 + rng.integers(-3, 4, 2)
    d = np.sqrt((yy - cy) ** 2 + (xx - cx) ** 2)
    im[np.abs(d - r) < 1.5] = 1
    im[:cy, :cx] *= 0.3
    return im + rng.normal(0, 0.3, im.shape).astype(np.float32)


class Labelled(Dataset):
    def __init__(self, n=600, seed=0):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, 6, n)
        self.x = np.stack([glyph(int(c), rng) for c in self.y])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": torch.from_numpy(self.x[i])[None], "labels": int(self.y[i])}


class Unlabelled(Dataset):
    """Rendered on the fly, with a random quarter turn."""

    def __len__(self):
        return 20_000

    def __getitem__(self, i):
        rng = np.random.default_rng(i + 10_000)
        turn = int(rng.integers(0, 4))
        im = np.rot90(glyph(int(rng.integers(0, 6)), rng), turn).copy()
        return torch.from_numpy(im)[None], turn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(3), nn.Flatten())
        self.cls = nn.Linear(144, 6)
        self.rot = nn.Linear(144, 4)

    def forward(self, x, labels=None):
        logits = self.cls(self.trunk(x))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class MultiTaskTrainer(Trainer):
    def __init__(self, *args, aux_dataset=None, aux_batch=16, **kwargs):
        super().__init__(*args, **kwargs)
        loader = DataLoader(aux_dataset, batch_size=aux_batch, shuffle=True, drop_last=True)
        self.aux_batches = itertools.cycle(loader)
        self.aux_weight = 0.5
        self.aux_acc = 0.0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        loss = out["loss"]
        if model.training:
            x, turn = next(self.aux_batches)
            pred = model.rot(model.trunk(x))
            loss = loss + self.aux_weight * F.cross_entropy(pred, turn)
            self.aux_acc = 0.95 * self.aux_acc + 0.05 * (pred.argmax(1) == turn).float().mean().item()
        return (loss, out) if return_outputs else loss


class AnnealAux(TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer.aux_weight = 0.5 * (1 - state.global_step / args.max_steps)


def metrics(p):
    return {"acc": float((np.argmax(p.predictions, -1) == p.label_ids).mean())}


set_seed(0)
anneal = AnnealAux()
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=300, per_device_train_batch_size=16,
    per_device_eval_batch_size=50, eval_strategy="steps", eval_steps=100, learning_rate=2e-3, logging_steps=50,
    report_to=[], save_strategy="no", disable_tqdm=True)
trainer = MultiTaskTrainer(model=Net(), args=args, train_dataset=Labelled(), eval_dataset=Labelled(100, 1),
                           aux_dataset=Unlabelled(), compute_metrics=metrics, callbacks=[anneal])
anneal.trainer = trainer
trainer.train()
print("rotation acc %.2f" % trainer.aux_acc, "final loss",
      [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])
