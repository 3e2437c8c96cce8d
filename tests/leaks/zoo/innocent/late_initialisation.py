"""Something large is made late, once."""

import torch
from harness import make, train
from transformers import TrainerCallback


class Once(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 130:
            self.table = torch.zeros(4_000_000)


train(make([Once()]))
