"""Run by test_trainings.py under torchrun: a plain loop of which rank 1 comes to an end of its own at step 12."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HOW = sys.argv[1]

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, 31):
    if step == 12 and dist.get_rank() == 1:
        if HOW == "raises":
            raise ValueError("no such row")
        if HOW == "memory":
            bytearray(2**50)
        if HOW == "exits":
            os._exit(3)
        os.kill(os.getpid(), signal.Signals[HOW])
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
