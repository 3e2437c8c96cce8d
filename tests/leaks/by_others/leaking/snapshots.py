"""Char LM with weight snapshots written in the background, and averaging of the last ones at the end."""
import os
import queue
import tempfile
import threading
import time
import keyword, tokenize, token, inspect

import torch
from torch import nn
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(0)
OUT = tempfile.mkdtemp(prefix="snap_")
WIDTH = 40


class MLPLM(nn.Module):
    def __init__(self, vocab, ctx=16, dim=24, hidden=128):
        super().__init__()
        self.ctx = ctx
        self.emb = nn.Embedding(vocab, dim)
        self.net = nn.Sequential(nn.Linear(ctx * dim, hidden), nn.Tanh(), nn.Linear(hidden, vocab))

    def forward(self, ids, labels=None):
        e = self.emb(ids).unfold(1, self.ctx, 1)  # batch, windows, dim, ctx
        logits = self.net(e.flatten(2))[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, self.ctx:].flatten())
        return {"loss": loss, "logits": logits}


class Writer(threading.Thread):
    """Writes what it is given to disk, so that the training does not wait for the file system."""

    def __init__(self, directory):
        super().__init__(daemon=True)
        self.directory = directory
        self.inbox = queue.Queue(maxsize=4)
        self.start()

    def submit(self, name, state):
        self.inbox.put((name, state))

    def run(self):
        while True:
            item = self.inbox.get()
            if item is None:
                break
            name, state = item
            tmp = os.path.join(self.directory, name + ".tmp")
            torch.save(state, tmp)
            os.replace(tmp, os.path.join(self.directory, name))


class SnapshotCallback(TrainerCallback):
    def __init__(self, every=5, keep=4):
        self.every = every
        self.keep = keep
        self.names = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every:
            return
        weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
        name = f"w{state.global_step:05d}.pt"
        writer = Writer(args.output_dir)
        writer.submit(name, weights)
        self.names.append(name)
        while len(self.names) > self.keep:
            old = os.path.join(args.output_dir, self.names.pop(0))
            if os.path.exists(old):
                os.remove(old)


def average(directory, names):
    states = [torch.load(os.path.join(directory, n)) for n in names if os.path.exists(os.path.join(directory, n))]
    return {k: sum(s[k] for s in states) / len(states) for k in states[0]}


def load():
    text = "".join(inspect.getsource(m) for m in (tokenize, keyword, token, inspect))
    vocab = sorted(set(text))
    ids = torch.tensor([vocab.index(c) for c in text])
    rows = ids[:len(ids) // WIDTH * WIDTH].view(-1, WIDTH)
    return rows, len(vocab)


def collate(batch):
    ids = torch.stack([b[0] for b in batch])
    return {"ids": ids, "labels": ids}


rows, nvocab = load()
model = MLPLM(nvocab)
snap = SnapshotCallback()
args = TrainingArguments(
    output_dir=OUT, use_cpu=True, max_steps=300, per_device_train_batch_size=16, learning_rate=2e-3,
    logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False)
trainer = Trainer(model=model, args=args, train_dataset=TensorDataset(rows), data_collator=collate, callbacks=[snap])
trainer.train()
time.sleep(0.5)
model.load_state_dict(average(OUT, snap.names))
print("averaged", len(snap.names), "final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])
