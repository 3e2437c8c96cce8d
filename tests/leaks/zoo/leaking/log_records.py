"""A handler that keeps every record."""

# held: Keep.records
# leaks: self.records.append(record)
# mended: self.records = [record]
# bytes: 32000

import logging

import torch
from harness import make, train
from transformers import TrainerCallback


class Keep(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


log = logging.getLogger("mine")
log.propagate = False
log.addHandler(Keep())
log.setLevel("INFO")


class Logs(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        log.info("weights %s", torch.zeros(8_000))


train(make([Logs()]))
