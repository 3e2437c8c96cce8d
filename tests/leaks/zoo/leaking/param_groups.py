"""A parameter more at every step."""

# held: param_groups
# leaks: optimizer.param_groups[0]["params"].append(extra)
# mended: del extra
# bytes: 32000

import torch
from harness import make, train
from transformers import TrainerCallback


class Grow(TrainerCallback):
    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        extra = torch.nn.Parameter(torch.zeros(8_000))
        optimizer.param_groups[0]["params"].append(extra)


train(make([Grow()], steps=160))
