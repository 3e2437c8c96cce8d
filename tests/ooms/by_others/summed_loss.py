"""Upscales small pictures of text; the losses of several batches are summed before one backward pass.

After: https://discuss.pytorch.org/t/gpu-memory-increase-while-i-wanna-to-backward-with-accumulative-loss/43284
"""

import inspect
import pdb
import resource

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

BATCH = 16
ACCUM = 12
LENGTH = 64
CHECKPOINTING = False
BACKWARD_EACH = False
DTYPE = torch.float32
STEPS = 12
MEMORY = 700

WIDTH = 24


def small_machine(mib):
    """From here on this process may map so many MiB more than it has: stands for a machine with little memory."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def picture():
    """The source of a module: a line is a row, the brightness of a pixel is the character."""
    lines = [line[:80].ljust(80) for line in inspect.getsource(pdb).splitlines()]
    return torch.tensor([[min(ord(character), 127) / 127 for character in line] for line in lines])


def batches(page):
    generator = torch.Generator().manual_seed(0)
    while True:
        top = torch.randint(page.shape[0] - LENGTH, (BATCH,), generator=generator)
        left = torch.randint(page.shape[1] - LENGTH, (BATCH,), generator=generator)
        corners = torch.stack([top, left], 1).tolist()
        sharp = torch.stack([page[y : y + LENGTH, x : x + LENGTH] for y, x in corners])
        yield sharp.unsqueeze(1).to(DTYPE)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return x + self.second(nn.functional.silu(self.first(x)))


class Upscale(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.inp = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.out = nn.Conv2d(WIDTH, 1, 3, padding=1)

    def forward(self, small):
        x = self.inp(nn.functional.interpolate(small, size=(LENGTH, LENGTH), mode="nearest"))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if CHECKPOINTING else block(x)
        return self.out(x)


def main():
    torch.manual_seed(0)
    model = Upscale().to(DTYPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = batches(picture())
    small_machine(MEMORY)
    for step in range(1, STEPS + 1):
        total = torch.zeros(())
        for _ in range(ACCUM):
            sharp = next(source)
            loss = nn.functional.l1_loss(model(nn.functional.avg_pool2d(sharp, 2)), sharp) / ACCUM
            if BACKWARD_EACH:
                loss.backward()
                loss = loss.detach()
            total = total + loss
        if not BACKWARD_EACH:
            total.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: {total.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
