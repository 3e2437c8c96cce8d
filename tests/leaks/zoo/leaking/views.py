"""Rows of a large tensor, each of which keeps all of it."""

# held: Peek.rows
# leaks: self.rows.append(large[0])
# mended: self.rows.append(large[0].mean().item())
# bytes: 80000

import torch
from harness import make, train
from transformers import TrainerCallback


class Peek(TrainerCallback):
    def __init__(self):
        self.rows = []

    def on_step_end(self, args, state, control, **kwargs):
        large = torch.randn(100, 200)
        self.rows.append(large[0])


train(make([Peek()]))
