"""A dictionary of the module, a key a step."""

# held: __main__.CACHE
# leaks: CACHE[state.global_step] = torch.zeros(8192)
# mended: CACHE[state.global_step % 4] = torch.zeros(8192)
# bytes: 32768

import torch
from harness import make, train
from transformers import TrainerCallback

CACHE = {}


class Caching(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        CACHE[state.global_step] = torch.zeros(8192)


train(make([Caching()]))
