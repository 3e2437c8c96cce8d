"""A tensor that is made longer at every step."""

# held: Concat.seen
# leaks: self.seen = torch.cat([self.seen, torch.ones(6_000)])
# mended: self.seen = torch.ones(6_000)
# bytes: 24000

import torch
from harness import make, train
from transformers import TrainerCallback


class Concat(TrainerCallback):
    def __init__(self):
        self.seen = torch.zeros(0)

    def on_step_end(self, args, state, control, **kwargs):
        self.seen = torch.cat([self.seen, torch.ones(6_000)])


train(make([Concat()]))
