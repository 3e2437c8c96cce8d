"""Accelerate loop, ragged sentences with an ALiBi-like bias per batch."""
import collections
import functools
import http.client
import inspect
import smtplib

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

DIM = 48
HEADS = 2
MAX = 48
BATCH = 8
STEPS = 350


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    @functools.lru_cache(maxsize=64)
    def slope(self, head):
        return 2.0 ** (-8.0 * (head + 1) / HEADS)

    @functools.cache
    def bias(self, lengths):
        """(batch, heads, t, t) additive mask: distance penalty, padding, causality."""
        t = max(lengths)
        pos = torch.arange(t)
        distance = (pos[None] - pos[:, None]).abs().float()
        out = torch.stack([-self.slope(h) * distance for h in range(HEADS)])
        out = out.repeat(len(lengths), 1, 1, 1)
        out.masked_fill_(pos[None] > pos[:, None], float("-inf"))
        for row, n in enumerate(lengths):
            out[row, :, :, n:] = -1e4
        return out

    def forward(self, x, lengths):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(tuple(lengths.tolist())))
        return self.proj(y.transpose(1, 2).reshape(b, t, DIM))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(128, DIM)
        self.attn = Attention()
        self.head = nn.Linear(DIM, 128)

    def forward(self, x, lengths):
        h = self.emb(x)
        return self.head(h + self.attn(h, lengths))


def collate(lines):
    rows = [torch.tensor([min(ord(c), 127) for c in s[:MAX]]) for s in lines]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(r) for r in rows])


def main():
    torch.manual_seed(0)
    text = inspect.getsource(http.client) + inspect.getsource(smtplib)
    lines = [s for s in text.splitlines() if len(s) > 8]
    accelerator = Accelerator(cpu=True)
    model = LM()
    loader = DataLoader(lines, batch_size=BATCH, shuffle=True, collate_fn=collate)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optim, loader = accelerator.prepare(model, optim, loader)
    recent = collections.deque(maxlen=100)
    widths = collections.Counter()
    step = 0
    while step < STEPS:
        for x, lengths in loader:
            logits = model(x, lengths)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten(), ignore_index=0)
            accelerator.backward(loss)
            optim.step()
            optim.zero_grad()
            recent.append(loss.item())
            widths[x.shape[1]] += 1
            step += 1
            if step % 100 == 0:
                accelerator.print(step, sum(recent) / len(recent), widths.most_common(2))
            if step == STEPS:
                break


if __name__ == "__main__":
    main()
