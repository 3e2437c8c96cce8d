"""Twenty KB a step."""

# held: Slow.kept
# leaks: self.kept.append(torch.zeros(5_000))
# mended: self.kept = [torch.zeros(5_000)]
# bytes: 20000

import torch
from harness import make, train
from transformers import TrainerCallback


class Slow(TrainerCallback):
    def __init__(self):
        self.kept = []

    def on_step_end(self, args, state, control, **kwargs):
        self.kept.append(torch.zeros(5_000))


train(make([Slow()], steps=300))
