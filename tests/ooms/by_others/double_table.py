"""Tagger on frozen word vectors; the table is made by numpy, whose numbers have eight bytes.

After: https://github.com/huggingface/transformers/issues/34743
"""

import collections
import inspect
import io
import keyword
import nntplib
import resource
import tokenize
import warnings

import numpy as np
import torch
from torch import nn

BATCH = 16
ACCUM = 1
LENGTH = 48
WIDTH = 300
DTYPE = "float64"
STEPS = 120
MEMORY = 420

WORDS = 200_000
warnings.filterwarnings("ignore", category=DeprecationWarning)


def small_machine(mib):
    """From here on this process may map so many MiB more than it has: stands for a machine with little memory."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def vectors():
    """The table as it would come from a file of word vectors, [WORDS, WIDTH]."""
    table = np.empty((WORDS, WIDTH), dtype=DTYPE)
    rng = np.random.default_rng(0)
    for start in range(0, WORDS, 10_000):
        table[start : start + 10_000] = rng.normal(size=(10_000, WIDTH))
    return table


def tagged():
    """Numbers of the tokens of a module, and whether they are names, keywords, numbers or others."""
    source = inspect.getsource(nntplib) + inspect.getsource(tokenize)
    words, tags = [], []
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(nntplib)).readline):
        words.append(hash(token.string) % WORDS)
        tags.append(3 if keyword.iskeyword(token.string) else min(token.type, 2))
    print(f"{len(source)} characters, {len(words)} tokens, {collections.Counter(tags)}")
    return torch.tensor(words), torch.tensor(tags)


class Tagger(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.from_numpy(table), freeze=True)
        self.body = nn.GRU(WIDTH, 64, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 4)

    def forward(self, words):
        inner, _ = self.body(self.table(words).to(self.head.weight.dtype))
        return self.head(inner)


def main():
    torch.manual_seed(0)
    words, tags = tagged()
    small_machine(MEMORY)
    model = Tagger(vectors())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    losses = collections.deque(maxlen=20)
    for step in range(1, STEPS + 1):
        for _ in range(ACCUM):
            at = torch.randint(len(words) - LENGTH, (BATCH, 1)) + torch.arange(LENGTH)
            loss = nn.functional.cross_entropy(model(words[at]).flatten(0, 1), tags[at].flatten())
            (loss / ACCUM).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 40 == 0:
            print(f"step {step}: {sum(losses) / len(losses):.3f}", flush=True)


if __name__ == "__main__":
    main()
