"""GRU language model on bytes; which inputs mattered is read from gradients while it trains.

After: https://github.com/chr5tphr/zennit/issues/125
"""
import collections
import heapq
import inspect
import time

import calendar
import csv
import locale
import torch
from torch import nn

BATCH, LENGTH = 12, 40


def corpus():
    text = "".join(inspect.getsource(module) for module in (calendar, csv, locale, heapq))
    return torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8).long()


def batches(raw, steps, generator):
    for _ in range(steps):
        at = torch.randint(len(raw) - LENGTH - 1, (BATCH, 1), generator=generator) + torch.arange(LENGTH + 1)
        rows = raw[at]
        yield rows[:, :-1], rows[:, 1:]


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 128)

    def forward(self, ids):
        inner, _ = self.body(self.embed(ids))
        return self.head(inner)


class Saliency:
    """Adds up, per byte value, how much the loss depends on its embedding."""

    def __init__(self, model):
        self.weight = model.embed.weight
        self.total = torch.zeros(128)
        self.seen = torch.zeros(128)
        self.rare = collections.Counter()

    def watch(self, ids):
        """Reads the gradient of this batch when it arrives."""
        one_hot = nn.functional.one_hot(ids.flatten(), 128)
        count = one_hot.sum(0)
        done = False

        def read(grad):
            nonlocal done
            if not done:
                done = True
                self.total += grad.norm(dim=1) * (count > 0)
                self.seen += one_hot.amax(0)

        self.weight.register_hook(read)
        self.rare.update(ids.flatten().tolist())

    def top(self, n=8):
        scores = self.total / self.seen.clamp(min=1)
        return "".join(chr(i) if 32 < i else "." for i in scores.topk(n).indices.tolist())


@torch.no_grad()
def evaluate(model, raw, generator):
    model.eval()
    losses = [
        nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in batches(raw, 5, generator)]
    model.train()
    return sum(losses) / len(losses)


def main(steps=400):
    torch.manual_seed(0)
    raw = corpus()
    train, held_out = raw[:-8000], raw[-8000:]
    model = Model()
    saliency = Saliency(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    window = collections.deque(maxlen=50)
    began = time.time()
    for step, (x, y) in enumerate(batches(train, steps, torch.Generator().manual_seed(1)), 1):
        if step % 2 == 0:
            saliency.watch(x)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        window.append(loss.item())
        if step % 80 == 0:
            held = evaluate(model, held_out, torch.Generator().manual_seed(2))
            print(f"{step} {sum(window) / len(window):.3f} {held:.3f} matters: {saliency.top()}", flush=True)
    print(f"{steps / (time.time() - began):.0f} steps/s, rarest {saliency.rare.most_common()[-3:]}")


if __name__ == "__main__":
    main()
