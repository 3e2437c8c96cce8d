"""A leak under a gc.freeze() of the user."""

# held: Frozen.kept
# leaks: self.kept.append(torch.zeros(10_000))
# mended: self.kept = [torch.zeros(10_000)]
# bytes: 40000

import gc

import torch
from harness import make, train
from transformers import TrainerCallback


class Frozen(TrainerCallback):
    def __init__(self):
        self.kept = []

    def on_train_begin(self, args, state, control, **kwargs):
        gc.collect()
        gc.freeze()

    def on_step_end(self, args, state, control, **kwargs):
        self.kept.append(torch.zeros(10_000))


train(make([Frozen()]))
