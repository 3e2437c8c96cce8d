"""Quantisation aware training with a custom autograd.Function."""
import calendar
import collections

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 64
CONTEXT = 12
WIDTH = 384
STEPS = 400


class SoftRound(torch.autograd.Function):
    """Round to 1/levels in forward, gradient that fades near saturation."""
    calls = []

    @staticmethod
    def forward(ctx, x, levels):
        out = torch.round(torch.tanh(x) * levels) / levels
        ctx.levels = levels
        ctx.out = out
        SoftRound.calls.append(ctx)
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 - ctx.out * ctx.out).clamp_min(1.0 / ctx.levels), None


class ClampSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return w.clamp(-1, 1)

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return grad * (w.abs() <= 1)


class QuantNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(128, 16)
        self.a = nn.Linear(16 * CONTEXT, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 128)
        self.register_buffer("act_range", torch.zeros(2))

    def forward(self, x):
        h = self.a(self.emb(x).flatten(1))
        with torch.no_grad():
            self.act_range.lerp_(torch.stack([h.min(), h.max()]), 0.05)
        h = SoftRound.apply(h, 16)
        h = F.linear(h, ClampSTE.apply(self.b.weight), self.b.bias)
        return self.out(F.relu(h))


def main():
    torch.manual_seed(0)
    text = open(calendar.__file__, encoding="utf-8").read()
    ids = torch.tensor([min(ord(c), 127) for c in text])
    model = QuantNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    recent = collections.deque(maxlen=40)
    ranges = []
    for step in range(STEPS):
        at = torch.randint(0, len(ids) - CONTEXT - 1, (BATCH,))
        x = torch.stack([ids[i:i + CONTEXT] for i in at])
        y = ids[at + CONTEXT]
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        recent.append(loss.item())
        if step % 50 == 0:
            ranges.append(model.act_range.tolist())
            saturated = (SoftRound.calls[-1].out.abs() > 0.99).float().mean().item()
            print(step, round(sum(recent) / len(recent), 3), ranges[-1], round(saturated, 3))


if __name__ == "__main__":
    main()
