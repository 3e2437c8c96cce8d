"""Batches of all lengths."""

import torch
from harness import make, train
from transformers import TrainerCallback


class Vary(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        self.batch = torch.ones(1_000 + (state.global_step * 7919) % 200_000)


train(make([Vary()]))
