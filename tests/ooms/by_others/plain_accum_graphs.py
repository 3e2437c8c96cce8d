"""Gradient accumulation: collect the micro batch losses, one backward per update."""
import inspect
import resource
import zipfile

import torch
from torch import nn
from torch.nn import functional as F

MICRO = 16
ACCUM = 32
SEQ = 64
DIM = 64
UPDATES = 6
ROOM_MIB = 160


def set_limit(mib):
    line = next(s for s in open("/proc/self/status") if s.startswith("VmData"))
    n = int(line.split()[1]) * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (n, n))


class EncoderLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(128, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 2, 4 * DIM, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(SEQ))

    def forward(self, x):
        return self.head(self.enc(self.emb(x), mask=self.mask, is_causal=True))


def main():
    torch.manual_seed(0)
    ids = torch.tensor([min(ord(c), 127) for c in inspect.getsource(zipfile)])
    model = EncoderLM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    set_limit(ROOM_MIB)
    for update in range(UPDATES):
        losses = []
        for _ in range(ACCUM):
            at = torch.randint(0, len(ids) - SEQ - 1, (MICRO,))
            x = torch.stack([ids[i:i + SEQ + 1] for i in at])
            logits = model(x[:, :-1])
            losses.append(F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()))
        loss = torch.stack(losses).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        print("update", update, "loss", round(loss.item(), 3), flush=True)


if __name__ == "__main__":
    main()
