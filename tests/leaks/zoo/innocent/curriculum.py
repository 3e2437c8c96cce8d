"""Longer and longer batches."""

import torch
from harness import make, train
from transformers import TrainerCallback


class Longer(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        torch.ones(2_000 * (1 + state.global_step)).sum()


train(make([Longer()]))
