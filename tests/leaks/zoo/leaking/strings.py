"""Texts of generations kept."""

# held: Samples.texts
# leaks: self.texts.append("word " * 6_000 + str(state.global_step))
# mended: self.texts = ["word " * 6_000 + str(state.global_step)]
# bytes: 30000

from harness import make, train
from transformers import TrainerCallback


class Samples(TrainerCallback):
    def __init__(self):
        self.texts = []

    def on_step_end(self, args, state, control, **kwargs):
        self.texts.append("word " * 6_000 + str(state.global_step))


train(make([Samples()]))
