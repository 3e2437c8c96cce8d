"""A buffer that was asked for at once and is filled bit by bit."""

import numpy as np
from harness import make, train
from transformers import TrainerCallback


class Replay(TrainerCallback):
    def __init__(self):
        self.buffer = np.zeros((1_000, 10_000), dtype=np.float32)

    def on_step_end(self, args, state, control, **kwargs):
        self.buffer[state.global_step] = 1.0


train(make([Replay()]))
