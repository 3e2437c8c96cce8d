"""Pretokenised corpus in a np.memmap, read once from front to back (nanoGPT style)."""
import glob
import os
import tempfile

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

SEQ = 64
BATCH = 8
STEPS = 400
STRIDE = 256 * 1024     # bytes of the file used per step: every step draws from its own region


def write_corpus(path):
    data = b"".join(open(p, "rb").read()
                    for p in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))))
    need = STRIDE * STEPS
    with open(path, "wb") as f:
        while f.tell() < need:
            f.write(data[:need - f.tell()])


class MappedTokens(IterableDataset):
    def __init__(self, path):
        self.tokens = np.memmap(path, dtype=np.uint8, mode="r")

    def __iter__(self):
        rng = np.random.default_rng(0)
        for step in range(STEPS):
            region = self.tokens[step * STRIDE:(step + 1) * STRIDE]
            # skip the regions that are mostly white space, as the paper does
            if (region == 32).mean() > 0.9:
                continue
            at = rng.integers(0, STRIDE - SEQ - 1, BATCH)
            rows = np.stack([region[i:i + SEQ + 1] for i in at]).astype(np.int64)
            yield torch.from_numpy(rows)


class GatedLM(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(256, dim)
        self.rnn = nn.Linear(dim, 2 * dim)
        self.head = nn.Linear(dim, 256)

    def forward(self, x):
        value, gate = self.rnn(self.emb(x)).chunk(2, -1)
        scale = torch.arange(1, x.shape[1] + 1)[None, :, None]
        return self.head((value * gate.sigmoid()).cumsum(1) / scale)


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.bin")
        write_corpus(path)
        loader = DataLoader(MappedTokens(path), batch_size=None)
        model = GatedLM()
        opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
        model, opt = accelerator.prepare(model, opt)
        losses = []
        for step, x in enumerate(loader, 1):
            loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
            if step % 80 == 0:
                accelerator.print(step, round(sum(losses[-80:]) / 80, 3))


if __name__ == "__main__":
    main()
