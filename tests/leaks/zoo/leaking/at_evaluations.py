"""A list of results that grows at each evaluation."""

# held: Evals.results
# leaks: self.results.append(torch.zeros(300_000))
# mended: self.results = [torch.zeros(300_000)]
# bytes: 48000

import torch
from harness import make, train
from transformers import TrainerCallback


class Evals(TrainerCallback):
    def __init__(self):
        self.results = []

    def on_evaluate(self, args, state, control, **kwargs):
        self.results.append(torch.zeros(300_000))


train(make([Evals()], steps=300, eval_strategy="steps", eval_steps=25))
