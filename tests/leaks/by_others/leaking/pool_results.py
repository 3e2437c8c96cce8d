"""Language model whose samples are scored by another process while the training goes on.

After: https://github.com/longcw/yolo2-pytorch/issues/77
"""
import collections
import inspect
import keyword
import multiprocessing
import re
import time

import shelve
import sched
import optparse
import torch
from torch import nn

LENGTH, BATCH = 64, 8


def score(rows):
    """Runs in the pool: for each row the share of keywords and balance of brackets, and where they are."""
    scores = []
    for row in rows:
        text = bytes(row).decode("latin-1")
        words = re.findall(r"[a-z_]+", text)
        known = sum(word in keyword.kwlist for word in words)
        depth, trace = 0, []
        for place, character in enumerate(text):
            depth += (character in "([{") - (character in ")]}")
            trace.append((place, character, depth, known / (1 + len(words))))
        scores.append({"keywords": known / (1 + len(words)), "open": depth, "trace": trace})
    return scores


class Corpus:
    def __init__(self):
        text = "".join(inspect.getsource(module) for module in (shelve, sched, optparse, multiprocessing.pool))
        self.raw = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8).long()
        self.generator = torch.Generator().manual_seed(0)

    def batch(self):
        at = torch.randint(len(self.raw) - LENGTH - 1, (BATCH, 1), generator=self.generator)
        rows = self.raw[at + torch.arange(LENGTH + 1)]
        return rows[:, :-1], rows[:, 1:]


class Model(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=d) for d in (1, 2, 4))
        self.head = nn.Linear(width, 128)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        for conv in self.convs:
            x = x + conv(nn.functional.pad(x, (2 * conv.dilation[0], 0))).relu()
        return self.head(x.transpose(1, 2))


class Judge:
    """Sends samples to the pool and asks later how they did."""

    def __init__(self, workers=1):
        self.pool = multiprocessing.Pool(workers)
        self.sent = []
        self.keywords = collections.deque(maxlen=100)
        self.asked = 0

    def send(self, logits):
        rows = torch.distributions.Categorical(logits=logits.detach()).sample().tolist()
        self.sent.append(self.pool.apply_async(score, (rows,)))

    def collect(self):
        while self.asked < len(self.sent) and self.sent[self.asked].ready():
            self.keywords.extend(one["keywords"] for one in self.sent[self.asked].get())
            self.asked += 1
        return sum(self.keywords) / max(1, len(self.keywords))

    def close(self):
        self.pool.close()
        self.pool.join()


def main(steps=400):
    torch.manual_seed(0)
    judge, corpus, model = Judge(), Corpus(), Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = collections.deque(maxlen=50)
    began = time.time()
    for step in range(1, steps + 1):
        x, y = corpus.batch()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        judge.send(logits)
        share = judge.collect()
        if step % 80 == 0:
            print(f"step {step}: loss {sum(losses) / len(losses):.3f}, keywords {share:.3f}", flush=True)
    judge.close()
    print(f"{judge.asked} of {steps} answers used, {steps / (time.time() - began):.0f} steps/s")


if __name__ == "__main__":
    main()
