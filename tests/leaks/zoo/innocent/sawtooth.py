"""Kept for fifty steps, then dropped."""

import torch
from harness import make, train
from transformers import TrainerCallback


class Window(TrainerCallback):
    def __init__(self):
        self.window = []

    def on_step_end(self, args, state, control, **kwargs):
        self.window.append(torch.zeros(15_000))
        if state.global_step % 50 == 0:
            self.window.clear()


train(make([Window()], steps=330))
