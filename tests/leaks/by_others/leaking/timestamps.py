"""Forecasts a bank of sensors; when each window was taken is kept for the report at the end.

After: https://github.com/pytorch/pytorch/issues/11201
"""
import collections
import math
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

SENSORS, WINDOW, BATCH = 24, 96, 32


class Windows(Dataset):
    """Noisy oscillators; column 0 is the time in hours, the others are sensors."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed
        generator = torch.Generator().manual_seed(seed)
        self.rate = torch.rand(SENSORS, generator=generator) * 0.4 + 0.02
        self.phase = torch.rand(SENSORS, generator=generator) * 2 * math.pi

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 100_003 + index)
        start = torch.rand(1, generator=generator) * 1000
        hours = start + torch.arange(WINDOW + 8)
        clean = torch.sin(hours[:, None] * self.rate + self.phase)
        seen = clean + 0.1 * torch.randn(clean.shape, generator=generator)
        return {"window": torch.cat([hours[:WINDOW, None], seen[:WINDOW]], dim=1), "labels": seen[WINDOW:]}


class Forecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.encode = nn.GRU(SENSORS, hidden, batch_first=True)
        self.predict = nn.Linear(hidden, 8 * SENSORS)

    def forward(self, window, labels=None):
        _, state = self.encode(window[:, ::2, 1:])
        forecast = self.predict(state[-1]).view(len(window), 8, SENSORS)
        return {"loss": nn.functional.huber_loss(forecast, labels), "forecast": forecast}


class Coverage:
    """Which hours of the plant's year the training has seen."""

    def __init__(self):
        self.stamps = []
        self.first = math.inf

    def saw(self, batch):
        start = batch["window"][:, 0, 0]
        self.stamps.append(start)
        self.first = min(self.first, start.min().item())

    def histogram(self, bins=10):
        return torch.histc(torch.cat(self.stamps), bins, 0, 1000).int().tolist()


class PlantTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.coverage = Coverage()
        self.norms = collections.deque(maxlen=20)

    def training_step(self, model, inputs, *args, **kwargs):
        self.coverage.saw(inputs)
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.norms.append(model.predict.weight.grad.norm().item())
        return loss


class Report(TrainerCallback):
    def __init__(self):
        self.rows = []

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.rows.append((state.global_step, round(metrics["eval_loss"], 4)))


def main():
    set_seed(2)
    report = Report()
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=BATCH, per_device_eval_batch_size=64,
        learning_rate=3e-3, dataloader_num_workers=1, eval_strategy="steps", eval_steps=100, logging_steps=100,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False)
    trainer = PlantTrainer(
        Forecaster(), arguments, train_dataset=Windows(20_000, seed=1), eval_dataset=Windows(256, seed=1),
        callbacks=[report])
    trainer.train()
    print("evaluations", report.rows)
    print("windows by hour", trainer.coverage.histogram(), f"from {trainer.coverage.first:.1f} h")
    print(f"mean gradient norm of the last steps {sum(trainer.norms) / len(trainer.norms):.3f}")


if __name__ == "__main__":
    main()
