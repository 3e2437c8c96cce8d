"""State of parameters that are gone."""

# held: state
# leaks: optimizer.state[gone] = {"exp_avg": torch.zeros(4_000), "exp_avg_sq": torch.zeros(4_000)}
# mended: del gone
# bytes: 48000

import torch
from harness import make, train
from transformers import TrainerCallback


class Stale(TrainerCallback):
    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        gone = torch.nn.Parameter(torch.zeros(4_000))
        optimizer.state[gone] = {"exp_avg": torch.zeros(4_000), "exp_avg_sq": torch.zeros(4_000)}


train(make([Stale()]))
