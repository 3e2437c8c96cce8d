"""Statistics as small dictionaries."""

# held: Stats.history
# leaks: self.history.append({"step": state.global_step, "name": f"weight {number}"})
# bytes: 26693
# mended: self.history = [{"step": state.global_step}]

from harness import make, train
from transformers import TrainerCallback


class Stats(TrainerCallback):
    def __init__(self):
        self.history = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        for number in range(100):
            self.history.append({"step": state.global_step, "name": f"weight {number}"})


train(make([Stats()]))
