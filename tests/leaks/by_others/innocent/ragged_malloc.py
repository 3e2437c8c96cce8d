"""Attention over sequences of very different lengths, with a few survivors that split the heap.

After: https://github.com/pytorch/pytorch/issues/29554
"""
import collections
import random
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

WIDTH, CLASSES = 32, 8


def draw(rng):
    """A sequence of a log-normal length; its class is which of some waves is in it."""
    length = max(4, min(700, int(rng.lognormvariate(4.2, 1.0))))
    label = rng.randrange(CLASSES)
    time_ = torch.arange(length, dtype=torch.float32)
    wave = torch.sin(time_[:, None] * (0.1 + 0.05 * label) + torch.arange(8))
    return wave + 0.5 * torch.randn(length, 8), label


class Prototypes:
    """For each class the sequences that were told with the greatest confidence."""

    def __init__(self, each=6):
        self.each = each
        self.best = collections.defaultdict(list)

    def offer(self, confidence, label, sequence):
        kept = self.best[label]
        kept.append((confidence, random.random(), sequence.clone()))
        kept.sort(key=lambda item: item[:2], reverse=True)
        del kept[self.each:]
        # the confidence of yesterday counts less
        self.best[label] = [(0.97 * c, r, s) for c, r, s in kept]

    def sizes(self):
        return {label: sum(len(s) for _, _, s in kept) for label, kept in sorted(self.best.items())}


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x, padded):
        h = self.inp(x)
        mixed, _ = self.attend(h, h, h, key_padding_mask=padded, need_weights=True)
        h = self.norm(h + mixed).masked_fill(padded[..., None], 0)
        return self.head(h.sum(1) / (~padded).sum(1, keepdim=True))


def main(steps=500, batch_size=4):
    torch.manual_seed(0)
    rng = random.Random(0)
    model, prototypes = Reader(), Prototypes()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses, longest = collections.deque(maxlen=60), 0
    began = time.time()
    for step in range(1, steps + 1):
        sequences, labels = zip(*(draw(rng) for _ in range(batch_size)))
        lengths = torch.tensor([len(s) for s in sequences])
        longest = max(longest, int(lengths.max()))
        x, labels = pad_sequence(sequences, batch_first=True), torch.tensor(labels)
        logits = model(x, torch.arange(x.shape[1]) >= lengths[:, None])
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        confidences = logits.detach().softmax(-1).amax(1).tolist()
        for confidence, label, sequence in zip(confidences, labels.tolist(), sequences):
            prototypes.offer(confidence, label, sequence)
        if step % 100 == 0:
            mean = sum(losses) / len(losses)
            print(f"step {step}: {mean:.3f}, longest {longest}, kept {prototypes.sizes()}", flush=True)
    print(f"{steps / (time.time() - began):.0f} steps/s")


if __name__ == "__main__":
    main()
