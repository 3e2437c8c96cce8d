"""Arrays of gradients kept for a plot."""

# held: Norms.values
# leaks: self.values.setdefault("inner", []).append(np.ones(5_000))
# mended: self.values["inner"] = [np.ones(5_000)]
# bytes: 40000

import numpy as np
from harness import make, train
from transformers import TrainerCallback


class Norms(TrainerCallback):
    def __init__(self):
        self.values = {}

    def on_step_end(self, args, state, control, **kwargs):
        self.values.setdefault("inner", []).append(np.ones(5_000))


train(make([Norms()]))
