"""Head first, body layer by layer later (gradual unfreezing)."""
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

FEATURES, DIM = 64, 512


class Net(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.inp = nn.Linear(FEATURES, DIM)
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(depth))
        self.head = nn.Linear(DIM, 10)

    def forward(self, x, labels=None):
        h = self.inp(x).relu()
        for layer in self.layers:
            h = h + layer(h).relu()
        logits = self.head(h)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Unfreeze(TrainerCallback):
    def __init__(self, starts):
        self.starts = starts

    def on_train_begin(self, args, state, control, model=None, **kw):
        for layer in model.layers:
            layer.requires_grad_(False)

    def on_step_begin(self, args, state, control, model=None, **kw):
        for layer, start in zip(reversed(model.layers), self.starts):
            if state.global_step == start:
                layer.requires_grad_(True)


if __name__ == "__main__":
    set_seed(5)
    x = torch.randn(2000, FEATURES)
    y = (x @ torch.randn(FEATURES, 10)).argmax(-1)
    rows = [{"x": a, "labels": b} for a, b in zip(x, y)]
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=240, per_device_train_batch_size=8,
                             learning_rate=1e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=120, disable_tqdm=True, remove_unused_columns=False)
    trainer = Trainer(model=Net(), args=args, train_dataset=rows, callbacks=[Unfreeze([50, 90, 130, 165])])
    print(f"final loss {trainer.train().training_loss:.4f}")
