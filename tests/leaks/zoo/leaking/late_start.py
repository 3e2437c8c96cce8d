"""Begins in the middle of the run."""

# held: Late.kept
# leaks: self.kept.append(torch.zeros(15_000))
# mended: self.kept = [torch.zeros(15_000)]
# bytes: 60000

import torch
from harness import make, train
from transformers import TrainerCallback


class Late(TrainerCallback):
    def __init__(self):
        self.kept = []

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step > 120:
            self.kept.append(torch.zeros(15_000))


train(make([Late()], steps=320))
