"""Closures that hold a batch each."""

# held: Later.todo
# leaks: self.todo.append(lambda: batch.sum())
# mended: self.todo = [lambda: batch.sum()]
# bytes: 40000

import torch
from harness import make, train
from transformers import TrainerCallback


class Later(TrainerCallback):
    def __init__(self):
        self.todo = []

    def on_step_end(self, args, state, control, **kwargs):
        batch = torch.ones(10_000)
        self.todo.append(lambda: batch.sum())


train(make([Later()]))
