"""MoCo-style pretraining of a small conv encoder, random-crop views of synthetic textures."""
import copy
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import TrainerCallback

QUEUE = 512
DIM = 32


class Textures(Dataset):
    def __init__(self, n=800):
        rng = np.random.default_rng(0)
        xx, yy = np.meshgrid(np.arange(32), np.arange(32))
        self.imgs = []
        for _ in range(n):
            a, b, ph = rng.uniform(0.1, 1.2, 2).tolist() + [rng.uniform(0, 6)]
            self.imgs.append(np.sin(a * xx + b * yy + ph).astype(np.float32))

    def __len__(self):
        return len(self.imgs)

    def view(self, im):
        r, c = np.random.randint(0, 8, 2)
        v = im[r:r + 24, c:c + 24]
        if np.random.rand() < 0.5:
            v = v[:, ::-1]
        return torch.from_numpy(v + 0.1 * np.random.randn(24, 24).astype(np.float32))[None]

    def __getitem__(self, i):
        im = self.imgs[i]
        return {"q": self.view(im), "k": self.view(im)}


def encoder():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, DIM),
    )


def info_nce(q, k, queue, tau=0.2):
    pos = (q * k).sum(-1, keepdim=True)
    neg = q @ queue.T
    logits = torch.cat([pos, neg], 1) / tau
    target = torch.zeros(len(q), dtype=torch.long)
    return F.cross_entropy(logits, target), logits


class MoCo(nn.Module):
    def __init__(self, m=0.99):
        super().__init__()
        self.query_encoder = encoder()
        self.key_encoder = copy.deepcopy(self.query_encoder)
        self.queue = F.normalize(torch.randn(QUEUE, DIM), dim=-1)
        self.m = m
        self.last_acc = 0.0

    @torch.no_grad()
    def momentum_update(self):
        for a, b in zip(self.query_encoder.parameters(), self.key_encoder.parameters()):
            b.mul_(self.m).add_(a, alpha=1 - self.m)

    def forward(self, q, k):
        qe = F.normalize(self.query_encoder(q), dim=-1)
        ke = F.normalize(self.key_encoder(k), dim=-1)
        loss, logits = info_nce(qe, ke.detach(), self.queue.detach())
        if self.training:
            self.queue = torch.cat([ke, self.queue])[:QUEUE]
            self.last_acc = (logits.argmax(1) == 0).float().mean().item()
        return {"loss": loss, "logits": logits}


class Momentum(TrainerCallback):
    def __init__(self):
        self.acc = 0.0

    def on_step_end(self, args, state, control, model=None, **kwargs):
        model.momentum_update()
        self.acc = 0.95 * self.acc + 0.05 * model.last_acc


torch.manual_seed(0)
np.random.seed(0)
cb = Momentum()
targs = TrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=300, logging_steps=50,
                          per_device_train_batch_size=16, learning_rate=1e-3, report_to=[], save_strategy="no",
                          remove_unused_columns=False, disable_tqdm=True, label_names=[])
trainer = Trainer(model=MoCo(), args=targs, train_dataset=Textures(), callbacks=[cb])
trainer.train()
print(f"queue acc {cb.acc:.3f}  final loss {[h['loss'] for h in trainer.state.log_history if 'loss' in h][-1]}")
