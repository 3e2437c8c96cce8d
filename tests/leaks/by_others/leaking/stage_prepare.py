"""Few-shot probes of a growing encoder: after some steps a new head is prepared, trained shortly, and read.

After: https://github.com/huggingface/accelerate/issues/84
"""
import collections
import inspect

import codecs
import fractions
import gettext
import numbers
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH, WIDTH, TOPICS = 32, 64, 4
MODULES = (codecs, fractions, gettext, numbers)


def corpus():
    """Rows of bytes with the number of the module they are from."""
    rows, topics = [], []
    for topic, module in enumerate(MODULES):
        codes = torch.tensor([min(ord(c), 127) for c in inspect.getsource(module)])
        found = codes[: len(codes) // LENGTH * LENGTH].view(-1, LENGTH)
        rows.append(found)
        topics.append(torch.full((len(found),), topic))
    return torch.cat(rows), torch.cat(topics)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(129, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 128)

    def states(self, ids):
        return self.body(self.embed(ids))

    def forward(self, ids):
        return self.out(self.states(ids))


class Probing:
    """A two-layer head on frozen states: how well can the topic be told by now?"""

    def __init__(self, accelerator, steps=4):
        self.accelerator = accelerator
        self.steps = steps
        self.curve = collections.deque(maxlen=12)

    def run(self, encoder, ids, topics):
        with torch.no_grad():
            states = encoder.states(ids).mean(1)
        head = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, TOPICS))
        optimizer = torch.optim.Adam(head.parameters(), lr=5e-3)
        head, optimizer = self.accelerator.prepare(head, optimizer)
        for _ in range(self.steps):
            loss = nn.functional.cross_entropy(head(states[::2]), topics[::2])
            self.accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            right = (head(states[1::2]).argmax(-1) == topics[1::2]).float()
        self.curve.append(self.accelerator.gather_for_metrics(right).mean().item())


def main(steps=400, every=3):
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    ids, topics = corpus()
    loader = DataLoader(TensorDataset(ids, topics), 12, shuffle=True, drop_last=True)
    encoder = Encoder()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    encoder, optimizer, loader, schedule = accelerator.prepare(encoder, optimizer, loader, schedule)
    probing = Probing(accelerator)
    losses = collections.deque(maxlen=50)
    step = 0
    while step < steps:
        for rows, labels in loader:
            hidden = torch.rand(rows.shape) < 0.15
            logits = encoder(rows.masked_fill(hidden, 128))
            loss = nn.functional.cross_entropy(logits[hidden], rows[hidden])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(encoder.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            step += 1
            if step % every == 0:
                probing.run(accelerator.unwrap_model(encoder), rows, labels)
            if step % 80 == 0:
                mean = sum(probing.curve) / len(probing.curve)
                accelerator.print(f"step {step}: loss {sum(losses) / len(losses):.3f}, topics {mean:.2f}", flush=True)
            if step == steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
