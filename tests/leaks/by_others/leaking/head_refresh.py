"""Classifier whose last layer is drawn anew now and then, against early overfitting."""
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

FEATURES, HIDDEN, CLASSES = 32, 128, 200


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        self.head = nn.Linear(HIDDEN, CLASSES, bias=False)

    def forward(self, x, labels=None):
        logits = self.head(self.body(x))
        return {"loss": nn.functional.cross_entropy(logits, labels, label_smoothing=0.05), "logits": logits}


class HeadRefresh(TrainerCallback):
    def __init__(self, until=0.95, keep=0.5):
        self.until, self.keep = until, keep
        self.count = 0

    def on_evaluate(self, args, state, control, model=None, optimizer=None, **kw):
        if state.global_step > self.until * state.max_steps:
            return
        head = nn.Linear(HIDDEN, CLASSES, bias=False)
        with torch.no_grad():
            head.weight.lerp_(model.head.weight, self.keep)
        group = next(g for g in optimizer.param_groups if any(p is model.head.weight for p in g["params"]))
        group["params"].append(head.weight)
        model.head = head
        self.count += 1


def make_rows(n, seed):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, CLASSES, (n,), generator=g)
    x = centres[y] + 0.7 * torch.randn(n, FEATURES, generator=g)
    return [{"x": a, "labels": b} for a, b in zip(x, y)]


def accuracy(p):
    return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


if __name__ == "__main__":
    set_seed(17)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=32,
                             learning_rate=3e-3, eval_strategy="steps", eval_steps=10,
                             per_device_eval_batch_size=100, use_cpu=True,
                             report_to=[], save_strategy="no", logging_steps=80, disable_tqdm=True,
                             remove_unused_columns=False)
    refresh = HeadRefresh()
    trainer = Trainer(model=Net(), args=args, train_dataset=make_rows(3000, 1), eval_dataset=make_rows(300, 2),
                      compute_metrics=accuracy, callbacks=[refresh])
    loss = trainer.train().training_loss
    print(f"final loss {loss:.4f} with {refresh.count} new heads")
