#!/usr/bin/env python
"""Tiny ViT on synthetic images with an EMA of the weights used at evaluation."""
import tempfile
from collections import deque

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification)


class Blobs(Dataset):
    """Images with a bright square in one of four corners."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, 4, n)
        self.x = rng.normal(0, 0.6, (n, 3, 16, 16)).astype(np.float32)
        for i, y in enumerate(self.y):
            r, c = divmod(int(y), 2)
            self.x[i, :, r * 8:r * 8 + 8, c * 8:c * 8 + 8] += 0.5

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if i % 2:
            x = x[:, ::-1, ::-1].copy()[:, ::-1, ::-1].copy()
        return {"pixel_values": torch.from_numpy(x), "labels": int(self.y[i])}


class EMACallback(TrainerCallback):
    def __init__(self, decay=0.98):
        self.decay = decay
        self.shadow = {}
        self.backup = None
        self.dist = deque(maxlen=50)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    def on_step_end(self, args, state, control, model=None, **kwargs):
        d = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        for n, p in model.named_parameters():
            self.shadow[n] = d * self.shadow[n] + (1 - d) * p
        w = model.classifier.weight
        self.dist.append(float((self.shadow["classifier.weight"] - w).norm()))

    def swap_in(self, model):
        self.backup = {n: p.detach().clone() for n, p in model.named_parameters()}
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(self.shadow[n])

    def swap_out(self, model):
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(self.backup[n])
        self.backup = None


class EMATrainer(Trainer):
    def evaluate(self, *args, **kwargs):
        self.ema.swap_in(self.model)
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.ema.swap_out(self.model)


def accuracy(p):
    return {"acc": float((p.predictions.argmax(-1) == p.label_ids).mean())}


def main():
    torch.manual_seed(3)
    cfg = ViTConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
                    image_size=16, patch_size=4, num_labels=4)
    model = ViTForImageClassification(cfg)
    ema = EMACallback()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=300, per_device_train_batch_size=16,
        per_device_eval_batch_size=32, eval_strategy="steps", eval_steps=75, learning_rate=5e-4,
        logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True,
    )
    trainer = EMATrainer(model=model, args=args, train_dataset=Blobs(2000, 0), eval_dataset=Blobs(128, 1),
                         compute_metrics=accuracy, callbacks=[ema])
    trainer.ema = ema
    trainer.train()
    print("ema distance %.4f" % (sum(ema.dist) / len(ema.dist)))
    print("final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
