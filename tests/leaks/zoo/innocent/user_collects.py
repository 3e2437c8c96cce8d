"""Cycles, and a collection every twenty steps."""

import gc

import torch
from harness import make, train
from transformers import TrainerCallback


class Cycle:
    pass


class Cycles(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        one = Cycle()
        one.me, one.payload = one, torch.zeros(20_000)
        if state.global_step % 20 == 0:
            gc.collect()


train(make([Cycles()]))
