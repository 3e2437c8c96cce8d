"""Classifier that reports calibration over its most recent predictions."""
import tempfile
from collections import deque

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

FEATURES, CLASSES = 24, 100


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Window(TrainerCallback):
    def __init__(self, size=220):
        self.recent = deque(maxlen=size)
        self.errors = []

    def on_step_end(self, args, state, control, **kw):
        if state.global_step % 100 == 0:
            p = torch.cat([a for a, _ in self.recent]).softmax(-1)
            y = torch.cat([b for _, b in self.recent])
            top, guess = p.max(-1)
            self.errors.append((top.mean() - (guess == y).float().mean()).item())


class WindowTrainer(Trainer):
    window = None

    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        loss, out = super().compute_loss(model, inputs, return_outputs=True, **kw)
        self.window.recent.append((out["logits"].detach(), inputs["labels"]))
        return (loss, out) if return_outputs else loss


if __name__ == "__main__":
    set_seed(1)
    centres = torch.randn(CLASSES, FEATURES)
    y = torch.randint(0, CLASSES, (4000,))
    x = centres[y] + torch.randn(4000, FEATURES)
    rows = [{"x": a, "labels": b} for a, b in zip(x, y)]
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=32,
                             learning_rate=3e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=200, disable_tqdm=True, remove_unused_columns=False)
    window = Window()
    trainer = WindowTrainer(model=Net(), args=args, train_dataset=rows, callbacks=[window])
    trainer.window = window
    print(f"final loss {trainer.train().training_loss:.4f}, errors {[round(e, 3) for e in window.errors]}")
