"""1-D signal classification with numpy augmentation (jitter, shift, cut-and-paste from other samples)."""
import random
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainingArguments

N = 512
CLASSES = 5


def synth(label, rng):
    t = np.linspace(0, 1, N, dtype=np.float32)
    f = 3 + 4 * label + rng.normal(0, 0.4)
    sig = np.sin(2 * np.pi * f * t + rng.uniform(0, 6)).astype(np.float32)
    return sig + rng.normal(0, 0.8, N).astype(np.float32)


def jitter(x, rng):
    return x * rng.uniform(0.8, 1.2) + rng.normal(0, 0.05, x.shape)


def shift(x, rng):
    return np.roll(x, rng.integers(-40, 40))


def cut_paste(x, y, rng, donors={c: [] for c in range(CLASSES)}):
    """Paste a segment of an earlier signal of the same class."""
    pool = donors[y]
    if pool and rng.random() < 0.5:
        a = int(rng.integers(0, N - 64))
        x = x.copy()
        x[a:a + 64] = random.choice(pool)[a:a + 64]
    pool.append(x)
    return x


class Signals(Dataset):
    def __init__(self, n, seed, augment):
        self.rng = np.random.default_rng(seed)
        self.y = self.rng.integers(0, CLASSES, n)
        self.x = np.stack([synth(int(y), self.rng) for y in self.y])
        self.augment = augment

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x, y = self.x[i], int(self.y[i])
        if self.augment:
            x = shift(jitter(x, self.rng), self.rng)
            x = cut_paste(x, y, self.rng)
        return {"x": torch.as_tensor(np.ascontiguousarray(x), dtype=torch.float32), "labels": y}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 8, 15, stride=4), nn.ReLU(), nn.Conv1d(8, 16, 9, stride=4), nn.ReLU(),
            nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, CLASSES))

    def forward(self, x, labels=None):
        logits = self.body(x[:, None])
        return {"loss": nn.functional.cross_entropy(logits, labels, label_smoothing=0.05), "logits": logits}


def compute_metrics(p: EvalPrediction):
    pred = p.predictions.argmax(-1)
    per_class = [float((pred[p.label_ids == c] == c).mean()) for c in range(CLASSES)]
    return {"acc": float((pred == p.label_ids).mean()), "worst": min(per_class)}


class KeepBest(TrainerCallback):
    def __init__(self):
        self.best, self.state = -1.0, None

    def on_evaluate(self, args, state, control, metrics=None, model=None, **kwargs):
        if metrics["eval_acc"] > self.best:
            self.best = metrics["eval_acc"]
            self.state = {k: v.clone() for k, v in model.state_dict().items()}


torch.manual_seed(0)
random.seed(0)
keep = KeepBest()
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=320, per_device_train_batch_size=16,
    per_device_eval_batch_size=64, eval_strategy="steps", eval_steps=80, logging_steps=50, learning_rate=2e-3,
    report_to=[], save_strategy="no", disable_tqdm=True)
trainer = Trainer(model=Net(), args=args, train_dataset=Signals(1500, 0, True), eval_dataset=Signals(256, 1, False),
                  compute_metrics=compute_metrics, callbacks=[keep])
trainer.train()
print("best acc", keep.best, "final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])
