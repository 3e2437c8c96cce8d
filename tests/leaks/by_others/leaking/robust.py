"""Regression on noisy tabular data; batches with broken sensors are skipped instead of killing the run."""
import collections
import logging
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

log = logging.getLogger(__name__)


class Sensors(Dataset):
    """24 channels x 32 time steps, some rows have a stuck channel (inf) or a gap (nan)."""

    def __init__(self, n=6000, broken=0.012, seed=0):
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(n, 32, 24)).astype(np.float32)
        self.y = self.x[:, :, :4].mean((1, 2)) * 8 + np.abs(self.x[:, -8:, 5]).max(1)
        bad = rng.random(n) < broken
        self.x[bad, 10, 3] = rng.choice([np.inf, np.nan], bad.sum())

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": torch.from_numpy(self.x[i]), "labels": torch.tensor(self.y[i], dtype=torch.float32)}


class Net(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.inp = nn.Linear(24, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.1, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 1)

    def forward(self, x, labels=None):
        h = self.enc(self.inp(x)).mean(1)
        pred = self.out(h).squeeze(-1)
        return {"loss": nn.functional.huber_loss(pred, labels), "pred": pred}


class BadBatch(RuntimeError):
    pass


class RobustTrainer(Trainer):
    def __init__(self, *args, max_failures=200, **kwargs):
        super().__init__(*args, **kwargs)
        self.failures = []
        self.max_failures = max_failures
        self.running = collections.deque(maxlen=50)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        loss = out["loss"]
        if not torch.isfinite(loss):
            rows = (~torch.isfinite(inputs["x"]).all(-1).all(-1)).nonzero().flatten().tolist()
            raise BadBatch(f"non-finite loss, rows {rows}")
        if self.running and loss.item() > 20 * np.median(self.running):
            raise BadBatch(f"loss spike {loss.item():.2f}")
        self.running.append(loss.item())
        return (loss, out) if return_outputs else loss

    def training_step(self, model, inputs, *args, **kwargs):
        try:
            return super().training_step(model, inputs, *args, **kwargs)
        except BadBatch as e:
            log.info("skipping batch at step %d: %s", self.state.global_step, e)
            self.failures.append(e)
            if len(self.failures) > self.max_failures:
                raise
            return torch.tensor(0.0)


class ErrorByRange(TrainerCallback):
    def __init__(self):
        self.rows = []

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.rows.append((state.global_step, round(metrics["eval_loss"], 4)))


def main():
    set_seed(4)
    cb = ErrorByRange()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=260, per_device_train_batch_size=8,
        per_device_eval_batch_size=32, eval_strategy="steps", eval_steps=65, learning_rate=1e-3,
        logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True, prediction_loss_only=True)
    trainer = RobustTrainer(model=Net(), args=args, train_dataset=Sensors(),
                            eval_dataset=Sensors(128, 0.0, 1), callbacks=[cb])
    trainer.train()
    kinds = collections.Counter(str(e).split(",")[0].split(" ")[0] for e in trainer.failures)
    print("skipped", dict(kinds), "final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
