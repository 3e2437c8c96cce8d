"""Classifies functions of the standard library by their module; one of them is very long.

After: https://github.com/Lightning-AI/pytorch-lightning/issues/8531
"""

import argparse
import ast
import collections
import inspect
import resource
import tarfile
import textwrap
import typing

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

BATCH = 8
ACCUM = 1
LENGTH = None
CHECKPOINTING = False
DTYPE = torch.float32
STEPS = 140
MEMORY = 700

WIDTH, LAYERS, HEADS = 32, 2, 4
MODULES = (argparse, tarfile, typing, inspect, textwrap)


def small_machine(mib):
    """From here on this process may map so many MiB more than it has: stands for a machine with little memory."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def functions():
    """(bytes, module number); short ones, and at the end of the first third a whole module as one."""
    rows = []
    for label, module in enumerate(MODULES):
        source = inspect.getsource(module)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                rows.append((ast.get_source_segment(source, node)[:300], label))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [rows[i] for i in order]
    rows = (rows * 4)[: STEPS * 8]
    rows[len(rows) // 3] = (inspect.getsource(typing)[:3000], MODULES.index(typing))
    return [(torch.tensor([min(ord(c), 127) for c in text])[:LENGTH], label) for text, label in rows]


class Layer(nn.Module):
    """Attention that keeps its weights, as a model that explains itself does."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(rows, length, WIDTH))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(128, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, len(MODULES))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if CHECKPOINTING else layer(x)
        return self.head(x.mean(1))


def collate(rows):
    texts, labels = zip(*rows, strict=False)
    return pad_sequence(texts, batch_first=True), torch.tensor(labels)


def main():
    torch.manual_seed(0)
    rows = functions()
    model = Reader().to(DTYPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    small_machine(MEMORY)
    losses = collections.deque(maxlen=20)
    for batch, (ids, labels) in enumerate(DataLoader(rows, BATCH, collate_fn=collate), 1):
        loss = nn.functional.cross_entropy(model(ids).float(), labels)
        (loss / ACCUM).backward()
        losses.append(loss.item())
        if batch % ACCUM == 0:
            optimizer.step()
            optimizer.zero_grad()
        if batch % 20 == 0:
            print(f"batch {batch}: {sum(losses) / len(losses):.3f}", flush=True)


if __name__ == "__main__":
    main()
