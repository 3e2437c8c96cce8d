"""GRU language model with an entropy metric, plain PyTorch loop."""
import collections
import difflib
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB = 256
SEQ = 32
BATCH = 8
STEPS = 400
LOG_EVERY = 100


class CharGRU(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, x, h=None):
        y, h = self.rnn(self.embed(x), h)
        return self.head(y), h


def batches(ids):
    gen = torch.Generator().manual_seed(0)
    while True:
        at = torch.randint(0, len(ids) - SEQ - 1, (BATCH,), generator=gen)
        yield (torch.stack([ids[i:i + SEQ] for i in at]),
               torch.stack([ids[i + 1:i + SEQ + 1] for i in at]))


def entropy_of(logits):
    logp = F.log_softmax(logits, dim=-1)
    return -(logp.exp() * logp).sum(-1).mean()


class Meter:
    """Running means of what we print."""

    def __init__(self):
        self.sums = collections.defaultdict(float)
        self.count = 0

    def update(self, **values):
        for name, value in values.items():
            self.sums[name] += value
        self.count += 1

    def __str__(self):
        return " ".join(f"{k}={float(v) / self.count:.3f}" for k, v in self.sums.items())


def main():
    torch.manual_seed(0)
    with open(difflib.__file__, "rb") as f:
        ids = torch.tensor(list(f.read()))
    model = CharGRU()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    meter = Meter()
    grad_norms = collections.deque(maxlen=50)
    hidden = None
    began = time.time()
    for step, (x, y) in zip(range(1, STEPS + 1), batches(ids)):
        logits, hidden = model(x, hidden)
        hidden = hidden.detach()
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        grad_norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        opt.step()
        entropy = entropy_of(logits)
        meter.update(loss=loss.item(), entropy=entropy)
        if step % LOG_EVERY == 0:
            print(step, meter, f"{step / (time.time() - began):.1f} it/s")
    print("median grad norm", sorted(grad_norms)[len(grad_norms) // 2])


if __name__ == "__main__":
    main()
