"""A loop of one's own, without a Trainer or any callback."""

import argparse
import resource
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=4096)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
own = parser.parse_args()
middle = [torch.nn.Tanh() for _ in range(5)]
net = torch.nn.Sequential(torch.nn.Linear(512, 2048), *middle, torch.nn.Linear(2048, 512))
optimizer = torch.optim.AdamW(net.parameters())
data = torch.randn(4096, 512)
pages = int(Path("/proc/self/statm").read_text().split()[5])
limit = pages * resource.getpagesize() + 160 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
for _ in range(3):
    for part in data.split(own.per_device_train_batch_size)[: own.gradient_accumulation_steps]:
        loss = net(part).square().mean()  # phase: forward
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
