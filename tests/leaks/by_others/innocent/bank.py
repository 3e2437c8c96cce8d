"""Sentence-like embeddings from code lines with a cross-batch memory (XBM)."""
import glob
import os
import random
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

LEN, DIM, BANK = 40, 64, 1600


class Lines(Dataset):
    def __init__(self, n=3000):
        lines = []
        for p in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
            lines += [l.strip() for l in open(p, encoding="utf-8", errors="ignore") if 20 < len(l.strip()) < 60]
            if len(lines) > n:
                break
        self.lines = lines[:n]

    def __len__(self):
        return len(self.lines)

    @staticmethod
    def noisy(s):
        raw = [b for b in s.encode() if random.random() > 0.1][:LEN]
        return torch.tensor(raw + [0] * (LEN - len(raw)))

    def __getitem__(self, i):
        return {"a": self.noisy(self.lines[i]), "b": self.noisy(self.lines[i]), "row": i}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(256, 32, padding_idx=0)
        self.conv = nn.Conv1d(32, 64, 5, padding=2)
        self.out = nn.Linear(64, DIM)

    def forward(self, ids):
        h = F.gelu(self.conv(self.emb(ids).transpose(1, 2))).amax(-1)
        return F.normalize(self.out(h), dim=-1)


class XBM(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.memory = []
        self.rows = []

    def forward(self, a, b, row):
        ea, eb = self.encoder(a), self.encoder(b)
        keys = torch.cat([eb] + [m[None] for m in self.memory[-256:]])
        logits = ea @ keys.T / 0.1
        same = torch.tensor([[r == q for q in self.rows[-256:]] for r in row.tolist()], dtype=torch.bool)
        if same.numel():
            logits[:, len(eb):] = logits[:, len(eb):].masked_fill(same, -1e4)
        loss = F.cross_entropy(logits, torch.arange(len(ea)))
        if self.training:
            for e, r in zip(eb.detach(), row.tolist()):
                self.memory.append(e.clone())
                self.rows.append(r)
            over = len(self.memory) - BANK
            if over > 0:
                del self.memory[:over], self.rows[:over]
        return {"loss": loss, "logits": logits}


class Temperature(TrainerCallback):
    def __init__(self):
        self.sim = 0.0

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if len(model.memory) > 20 and state.global_step % 20 == 0:
            last = torch.stack(model.memory[-20:])
            self.sim = float((last @ last.T).mean())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None:
            logs["sim"] = round(self.sim, 3)


if __name__ == "__main__":
    set_seed(0)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=300, per_device_train_batch_size=16,
        learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False)
    trainer = Trainer(model=XBM(), args=args, train_dataset=Lines(), callbacks=[Temperature()])
    trainer.train()
    print("final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])
