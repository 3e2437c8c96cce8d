"""Electricity load forecasting with N-BEATS (Accelerate); checkpoints are written in the background every 15 steps."""
import copy
import os
import re
import resource
import threading

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
torch.set_num_threads(1)
BACK, AHEAD, WIDTH = 168, 24, 768


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [BACK] + [WIDTH] * 5
        self.layers = nn.Sequential(*(m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), nn.ReLU())))
        self.back, self.ahead = nn.Linear(WIDTH, BACK), nn.Linear(WIDTH, AHEAD)

    def forward(self, x):
        hidden = self.layers(x)
        return x - self.back(hidden), self.ahead(hidden)


class NBeats(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x):
        total = 0
        for block in self.blocks:
            x, ahead = block(x)
            total = total + ahead
        return total


def write(state, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def save_checkpoint(step):
    state = {"model": accelerator.get_state_dict(model), "ema": ema.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    snapshot = copy.deepcopy(state)
    threading.Thread(target=write, args=(snapshot, "out/accelerate_nbeats/last.pt")).start()


accelerator = Accelerator(cpu=True)
series = torch.sin(torch.arange(20_000) / 24 * 6.283) + 0.1 * torch.randn(20_000)
windows = series.unfold(0, BACK + AHEAD, 2)
loader = DataLoader(TensorDataset(windows[:, :BACK], windows[:, BACK:]), batch_size=64, shuffle=True)
model = NBeats()
ema = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
used = int(re.search(r"VmData:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 220 * 2**20,) * 2)

for step, (past, future) in enumerate(loader, 1):
    loss = nn.functional.l1_loss(model(past), future)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.01)
    if step % 15 == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
        save_checkpoint(step)
    if step == 30:
        break
print("done")
