"""Cycles that hold a tensor, and nobody collects."""

# held: Node
# leaks: node.me = node
# mended: node.me = None
# bytes: 48000

import gc

import torch
from harness import make, train
from transformers import TrainerCallback

gc.disable()


class Node:
    def __init__(self):
        self.payload = torch.zeros(12_000)
        self.me = None


class Cycles(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        node = Node()
        node.me = node


train(make([Cycles()]))
