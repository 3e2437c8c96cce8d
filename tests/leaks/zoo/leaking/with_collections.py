"""The user collects at every step, and still it grows."""

# held: Collects.kept
# leaks: self.kept.append(torch.zeros(10_000))
# mended: self.kept = [torch.zeros(10_000)]
# bytes: 40000

import gc

import torch
from harness import make, train
from transformers import TrainerCallback


class Collects(TrainerCallback):
    def __init__(self):
        self.kept = []

    def on_step_end(self, args, state, control, **kwargs):
        gc.collect()
        self.kept.append(torch.zeros(10_000))


train(make([Collects()], steps=160))
