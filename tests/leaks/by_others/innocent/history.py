"""Sequence regression; keeps the recent predictions for a drift test and the recent batches for a replay pass."""
import collections
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

T, C = 64, 12


class Drifting(IterableDataset):
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        w = self.rng.normal(size=C)
        while True:
            w += 0.002 * self.rng.normal(size=C)
            x = self.rng.normal(size=(T, C)).astype(np.float32)
            y = np.float32(np.tanh(x @ w).mean() * 4 + x[-1, 0])
            yield {"x": torch.from_numpy(x), "labels": torch.tensor(y)}


class Net(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(C, hidden, 3, padding=1), nn.GELU(), nn.Conv1d(hidden, hidden, 3, padding=1),
                                  nn.GELU())
        self.att = nn.Linear(hidden, 1)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x, labels=None):
        h = self.conv(x.transpose(1, 2)).transpose(1, 2)
        a = self.att(h).softmax(1)
        pred = self.out((a * h).sum(1)).squeeze(-1)
        return {"loss": nn.functional.mse_loss(pred, labels), "pred": pred, "hidden": h}


class DriftTrainer(Trainer):
    def __init__(self, *args, window=120, **kwargs):
        super().__init__(*args, **kwargs)
        self.recent = collections.deque(maxlen=window)
        self.residuals = np.zeros((0,), np.float32)
        self.all_losses = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        loss = out["loss"]
        self.recent.append((inputs["x"], inputs["labels"], out["hidden"].detach()))
        self.residuals = np.concatenate([self.residuals, (out["pred"].detach() - inputs["labels"]).numpy()])[-4000:]
        self.all_losses.append(loss.item())
        if self.state.global_step % 20 == 19:
            x, y, h = self.recent[int(np.random.randint(len(self.recent)))]
            again = model(x=x, labels=y)
            stay = (again["hidden"] - h).pow(2).mean()
            loss = loss + 0.2 * again["loss"] + 0.01 * stay
        return (loss, out) if return_outputs else loss


class DriftTest(TrainerCallback):
    def __init__(self):
        self.trainer = None
        self.z = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        r = self.trainer.residuals
        if len(r) < 200:
            return
        a, b = np.array_split(r ** 2, 2)
        z = (b.mean() - a.mean()) / np.sqrt(a.var() / len(a) + b.var() / len(b))
        self.z.append(round(float(z), 2))


def main():
    set_seed(0)
    test = DriftTest()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=360, per_device_train_batch_size=16,
        learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False)
    trainer = DriftTrainer(model=Net(), args=args, train_dataset=Drifting(), callbacks=[test])
    test.trainer = trainer
    trainer.train()
    print("drift z", test.z, "mean loss %.3f" % np.mean(trainer.all_losses), "final loss",
          [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
