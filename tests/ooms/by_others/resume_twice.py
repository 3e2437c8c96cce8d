"""Goes on with a training: the checkpoint is read once for the weights and once for the optimizer.

After: https://github.com/karpathy/nanoGPT/issues/158
"""

import collections
import fileinput
import inspect
import pathlib
import resource
import subprocess
import sys
import tempfile
import tokenize

import torch
from torch import nn

BATCH = 4
ACCUM = 1
LENGTH = 32
WIDTH = 1100
LOAD_ONCE = False
STEPS = 12
MEMORY = 440


def small_machine(mib):
    """From here on this process may map so many MiB more than it has: stands for a machine with little memory."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(128, WIDTH)
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU()) for _ in range(16)))
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, ids):
        context = self.embed(ids).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]
        return self.head(self.body(context))


def batches():
    text = "".join(inspect.getsource(module) for module in (tokenize, fileinput))
    codes = torch.tensor([min(ord(character), 127) for character in text])
    generator = torch.Generator().manual_seed(0)
    while True:
        at = torch.randint(len(codes) - LENGTH - 1, (BATCH, 1), generator=generator)
        rows = codes[at + torch.arange(LENGTH + 1)]
        yield rows[:, :-1], rows[:, 1:]


def train(model, optimizer, first, last):
    source, losses = batches(), collections.deque(maxlen=10)
    for step in range(first, last + 1):
        for _ in range(ACCUM):
            x, y = next(source)
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            (loss / ACCUM).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 5 == 0:
            print(f"step {step}: {sum(losses) / len(losses):.3f}", flush=True)


def first_part(path):
    """What ran yesterday, without a limit."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train(model, optimizer, 1, 2)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}, path)


def resume(path):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    state = checkpoint if LOAD_ONCE else torch.load(path)
    optimizer.load_state_dict(state["optimizer"])
    return model, optimizer, state["step"]


def main():
    if len(sys.argv) > 1:
        first_part(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "checkpoint.pt"
        subprocess.run([sys.executable, __file__, str(path)], check=True)
        small_machine(MEMORY)
        model, optimizer, step = resume(path)
        print(f"goes on after step {step}", flush=True)
        train(model, optimizer, step + 1, STEPS)


if __name__ == "__main__":
    main()
