"""A list in a function that a callback appends to."""

# held: kept
# leaks: kept.append(torch.zeros(10_000))
# mended: torch.zeros(10_000)
# bytes: 40000

import torch
from harness import make, train
from transformers import TrainerCallback


def main():
    kept = []

    class Keep(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            kept.append(torch.zeros(10_000))

    train(make([Keep()]))


main()
