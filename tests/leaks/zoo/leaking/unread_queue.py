"""A queue that nobody empties."""

# held: Sender.outbox
# leaks: self.outbox.put(torch.zeros(9_000))
# mended: self.outbox.put(torch.zeros(9_000)), self.outbox.get()
# bytes: 36000

import queue

import torch
from harness import make, train
from transformers import TrainerCallback


class Sender(TrainerCallback):
    def __init__(self):
        self.outbox = queue.Queue()

    def on_step_end(self, args, state, control, **kwargs):
        self.outbox.put(torch.zeros(9_000))


train(make([Sender()]))
