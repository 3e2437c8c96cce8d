"""A thread more at every step, waiting for ever."""

# held: threading._active
# leaks: daemon=True).start()
# mended: daemon=True)

import threading

import torch
from harness import make, train
from transformers import TrainerCallback

stop = threading.Event()


def wait(values):
    stop.wait()


class Threads(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        threading.Thread(target=wait, args=(torch.zeros(10_000),), daemon=True).start()


train(make([Threads()], steps=160))
stop.set()
