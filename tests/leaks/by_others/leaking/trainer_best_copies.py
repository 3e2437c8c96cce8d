"""Trainer with a 'keep the best model in RAM' callback instead of checkpoints."""
import bisect
import collections
import copy
import shlex
import string
import tempfile
import zipfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

CONTEXT = 24
STEPS = 400
EVAL_EVERY = 8


class NextByte(Dataset):
    def __init__(self, path, lo, hi):
        data = open(path, "rb").read()
        data = data[int(lo * len(data)):int(hi * len(data))]
        self.data = torch.tensor([b & 127 for b in data])

    def __len__(self):
        return len(self.data) - CONTEXT - 1

    def __getitem__(self, i):
        return {"x": self.data[i:i + CONTEXT], "labels": self.data[i + CONTEXT]}


class Mlp(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.emb = nn.Embedding(128, 32)
        self.body = nn.Sequential(nn.Linear(32 * CONTEXT, width), nn.GELU(),
                                  nn.Linear(width, width), nn.GELU(), nn.Linear(width, 128))

    def forward(self, x, labels=None):
        logits = self.body(self.emb(x).flatten(1))
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


class KeepBest(TrainerCallback):
    def __init__(self, top_k=3):
        self.top_k = top_k
        self.ranking = []
        self.candidates = {}
        self.recent = collections.deque(maxlen=10)

    def on_evaluate(self, args, state, control, metrics=None, model=None, **kwargs):
        loss = metrics["eval_loss"]
        self.recent.append(loss)
        self.candidates[state.global_step] = copy.deepcopy(model)
        bisect.insort(self.ranking, (loss, state.global_step))
        del self.ranking[self.top_k:]

    def best(self):
        return self.candidates[self.ranking[0][1]]


def main():
    torch.manual_seed(0)
    train = NextByte(zipfile.__file__, 0.0, 0.98)
    held_out = NextByte(shlex.__file__, 0.0, 0.02)
    keeper = KeepBest()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=STEPS, per_device_train_batch_size=32, learning_rate=1e-3,
            per_device_eval_batch_size=64, eval_strategy="steps", eval_steps=EVAL_EVERY,
            logging_steps=100, save_strategy="no", report_to="none", use_cpu=True,
            disable_tqdm=True)
        trainer = Trainer(model=Mlp(), args=args, train_dataset=train, eval_dataset=held_out,
                          callbacks=[keeper])
        trainer.train()
    print("best", keeper.ranking[0], sum(p.numel() for p in keeper.best().parameters()),
          string.capwords("done"))


if __name__ == "__main__":
    main()
