"""Collects per-step embeddings and writes them to disk every 100 steps."""
import collections
import os
import pprint
import tempfile
import tokenize

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

SEQ = 32
BATCH = 12
STEPS = 480
FLUSH = 100


class EmbeddingDump:
    """Rows for a later UMAP plot; one .npy file per flush."""

    def __init__(self, folder, every):
        self.folder, self.every = folder, every
        self.rows, self.files = [], []

    def add(self, tensor):
        self.rows.append(tensor.detach().numpy().copy())
        if len(self.rows) >= self.every:
            self.flush()

    def flush(self):
        if not self.rows:
            return
        path = os.path.join(self.folder, f"part{len(self.files):03d}.npy")
        np.save(path, np.concatenate(self.rows))
        self.files.append(path)
        self.rows = []


class TinyLM(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(128, dim)
        self.mix = nn.Conv1d(dim, dim, 4)
        self.head = nn.Linear(dim, 128)

    def forward(self, x):
        h = F.pad(self.emb(x).transpose(1, 2), (3, 0))
        h = F.gelu(self.mix(h)).transpose(1, 2)
        return h, self.head(h)


def main():
    torch.manual_seed(0)
    ids = torch.tensor([min(ord(c), 127) for c in open(tokenize.__file__).read()
                        + open(pprint.__file__).read()])
    model = TinyLM()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recent = collections.deque(maxlen=60)
    with tempfile.TemporaryDirectory() as folder:
        dump = EmbeddingDump(folder, FLUSH)
        for step in range(1, STEPS + 1):
            at = torch.randint(0, len(ids) - SEQ - 1, (BATCH,))
            x = torch.stack([ids[i:i + SEQ + 1] for i in at])
            hidden, logits = model(x[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            dump.add(hidden)
            recent.append(loss.item())
            if step % 60 == 0:
                print(step, "loss", round(sum(recent) / len(recent), 3), "files", len(dump.files))
        dump.flush()
        print(len(dump.files), "files,", sum(map(os.path.getsize, dump.files)) // 2**20, "MiB")


if __name__ == "__main__":
    main()
