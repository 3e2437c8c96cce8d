"""LR range test: sweep the lr exponentially, keep the weights of the best point and go on from it."""
import copy
import math
import pathlib
import tempfile
import textwrap

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class CharWindows(Dataset):
    def __init__(self, width=32):
        text = pathlib.Path(textwrap.__file__).read_text()
        self.vocab = sorted(set(text))
        stoi = {c: i for i, c in enumerate(self.vocab)}
        self.ids = torch.tensor([stoi[c] for c in text])
        self.width = width

    def __len__(self):
        return len(self.ids) - self.width - 1

    def __getitem__(self, i):
        return {"x": self.ids[i:i + self.width], "labels": self.ids[i + 1:i + 1 + self.width]}


class CharLSTM(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, 64, batch_first=True)
        self.head = nn.Linear(64, vocab)

    def forward(self, x, labels=None):
        h, _ = self.rnn(self.emb(x))
        logits = self.head(h)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class LRFinder(TrainerCallback):
    def __init__(self, lo=1e-5, hi=3e-3, num=300, beta=0.95):
        self.lrs = np.geomspace(lo, hi, num)
        self.beta = beta
        self.avg = 0.0
        self.best = math.inf
        self.best_states = {}
        self.curve = []

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        lr = float(self.lrs[min(state.global_step, len(self.lrs) - 1)])
        for g in optimizer.param_groups:
            g["lr"] = lr

    def record(self, step, loss, model):
        self.avg = self.beta * self.avg + (1 - self.beta) * loss
        smooth = self.avg / (1 - self.beta ** (step + 1))
        self.curve.append((float(self.lrs[min(step, len(self.lrs) - 1)]), smooth))
        if smooth < self.best:
            self.best = smooth
            self.best_states[step] = copy.deepcopy(model.state_dict())

    def on_train_end(self, args, state, control, model=None, **kwargs):
        step = max(self.best_states)
        model.load_state_dict(self.best_states[step])
        lrs, losses = map(np.array, zip(*self.curve))
        steepest = lrs[np.gradient(losses).argmin()]
        print(f"best at step {step}, suggested lr {steepest:.2e}")


class FinderTrainer(Trainer):
    def training_step(self, model, inputs, *args, **kwargs):
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.finder.record(self.state.global_step, loss.item(), model)
        return loss


torch.manual_seed(0)
data = CharWindows()
finder = LRFinder()
targs = TrainingArguments(
    output_dir=tempfile.mkdtemp(prefix="lrf"), use_cpu=True, max_steps=300, logging_steps=50,
    per_device_train_batch_size=16, lr_scheduler_type="constant", report_to=[],
    save_strategy="no", disable_tqdm=True,
)
trainer = FinderTrainer(model=CharLSTM(len(data.vocab)), args=targs, train_dataset=data, callbacks=[finder])
trainer.finder = finder
trainer.train()
print("final training loss", [e["loss"] for e in trainer.state.log_history if "loss" in e][-1])
