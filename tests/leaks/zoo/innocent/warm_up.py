"""Much is made in the first fifty steps."""

import torch
from harness import make, train
from transformers import TrainerCallback


class Warm(TrainerCallback):
    def __init__(self):
        self.tables = []

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step < 50:
            self.tables.append(torch.zeros(50_000))


train(make([Warm()]))
