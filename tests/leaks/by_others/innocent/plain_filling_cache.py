"""LRU feature cache in front of a linear probe; it fills for most of the run."""
import collections
import glob
import os
import random

import torch
from torch import nn
from torch.nn import functional as F

CACHE = 1800
CHUNK = 256
BATCH = 16
STEPS = 450


class FeatureCache:
    def __init__(self, chunks, size):
        self.chunks = chunks
        self.size = size
        self.entries = collections.OrderedDict()
        self.hits = self.misses = 0
        self.backbone = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 32), nn.Tanh())

    @torch.no_grad()
    def __getitem__(self, i):
        if i in self.entries:
            self.hits += 1
            self.entries.move_to_end(i)
            return self.entries[i]
        self.misses += 1
        ids = torch.frombuffer(bytearray(self.chunks[i]), dtype=torch.uint8).long()
        self.entries[i] = self.backbone(ids).flatten()
        if len(self.entries) > self.size:
            self.entries.popitem(last=False)
        return self.entries[i]


def load():
    chunks, labels = [], []
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:80]:
        data = open(path, "rb").read()
        for i in range(0, len(data) - CHUNK, CHUNK):
            chunks.append(data[i:i + CHUNK])
            labels.append(int(b"import" in chunks[-1] or b"class" in chunks[-1]))
    return chunks, torch.tensor(labels)


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    chunks, labels = load()
    chunks, labels = chunks[:2400], labels[:2400]
    cache = FeatureCache(chunks, CACHE)
    probe = nn.Sequential(nn.Linear(32 * CHUNK, 64), nn.ReLU(), nn.Linear(64, 2))
    opt = torch.optim.SGD(probe.parameters(), lr=0.05)
    losses = []
    for step in range(STEPS):
        at = [rng.randrange(len(chunks)) for _ in range(BATCH)]
        x = torch.stack([cache[i] for i in at])
        loss = F.cross_entropy(probe(x), labels[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if step % 90 == 89:
            print(step + 1, "loss", sum(losses[-90:]) / 90, "cached", len(cache.entries),
                  "hit rate", round(cache.hits / (cache.hits + cache.misses), 3))


if __name__ == "__main__":
    main()
