"""An unbounded cache of a pure function."""

# held: __main__.features
# leaks: @functools.cache
# mended: @functools.lru_cache(maxsize=4)
# bytes: 40000

import functools

import torch
from harness import make, train
from transformers import TrainerCallback


@functools.cache
def features(step):
    return torch.full((10_000,), float(step))


class Features(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        features(state.global_step)


train(make([Features()]))
