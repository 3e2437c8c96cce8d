"""Sequence autoencoder; every step a few predictions go to the debug log for later inspection."""
import logging
import logging.handlers
import os
import tempfile

import torch
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

OUT = tempfile.mkdtemp(prefix="autoenc_")
LEN = 256


def setup_logging(path):
    logger = logging.getLogger("samples")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    target = logging.FileHandler(os.path.join(path, "samples.log"), delay=True)
    target.setFormatter(logging.Formatter("%(relativeCreated)d %(message)s"))
    # records are written in blocks, the disk is on NFS
    buffered = logging.handlers.MemoryHandler(capacity=100, flushLevel=logging.CRITICAL)
    logger.addHandler(buffered)
    return logger


class Waves(Dataset):
    def __init__(self, n=3000):
        g = torch.Generator().manual_seed(2)
        self.f = torch.rand(n, 3, generator=g) * 12
        self.a = torch.rand(n, 3, generator=g)
        self.t = torch.linspace(0, 6.28, LEN)

    def __len__(self):
        return len(self.f)

    def __getitem__(self, i):
        x = (self.a[i, :, None] * torch.sin(self.f[i, :, None] * self.t)).sum(0)
        return {"x": x, "labels": x}


class AutoEncoder(nn.Module):
    def __init__(self, code=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(LEN, 128), nn.GELU(), nn.Linear(128, code))
        self.dec = nn.Sequential(nn.Linear(code, 128), nn.GELU(), nn.Linear(128, LEN))

    def forward(self, x, labels=None):
        rec = self.dec(self.enc(x))
        err = (rec - labels).pow(2).mean(-1)
        return {"loss": err.mean(), "rec": rec, "err": err}


class SampleTrainer(Trainer):
    def __init__(self, *a, logger=None, n_samples=6, **k):
        super().__init__(*a, **k)
        self.sample_log = logger
        self.n_samples = n_samples

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        if model.training:
            order = out["err"].detach().argsort(descending=True)[:self.n_samples]
            for j in order.tolist():
                self.sample_log.debug(
                    "step %d err %.4f target %s rec %s", self.state.global_step, float(out["err"][j]),
                    inputs["x"][j].numpy().round(2).tolist(), out["rec"][j].detach().numpy().round(2).tolist())
        return (out["loss"], out) if return_outputs else out["loss"]


class Plateau(TrainerCallback):
    def __init__(self):
        self.best, self.since = float("inf"), 0

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if metrics["eval_loss"] < self.best:
            self.best, self.since = metrics["eval_loss"], 0
        else:
            self.since += 1


def main():
    set_seed(9)
    logger = setup_logging(OUT)
    ds = Waves()
    train, val = torch.utils.data.random_split(ds, [2900, 100])
    plateau = Plateau()
    args = TrainingArguments(
        output_dir=OUT, use_cpu=True, max_steps=350, per_device_train_batch_size=16,
        eval_strategy="steps", eval_steps=100, learning_rate=1e-3, logging_steps=50, report_to=[],
        save_strategy="no", disable_tqdm=True, prediction_loss_only=True)
    trainer = SampleTrainer(model=AutoEncoder(), args=args, train_dataset=train, eval_dataset=val,
                            callbacks=[plateau], logger=logger)
    trainer.train()
    logging.shutdown()
    print("best eval", round(plateau.best, 4), "final loss",
          [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
