"""Run by test_trainings.py: no Trainer, on as many ranks as there are, and nothing of transformers."""

import os

import torch

layer = torch.nn.Linear(64, 64)
for _ in range(5):
    layer.zero_grad()
    layer(torch.randn(8, 64)).square().mean().backward()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter -= 0.01 * parameter.grad
print(f"rank {os.environ.get('RANK')}")
