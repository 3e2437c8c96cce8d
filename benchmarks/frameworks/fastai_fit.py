import random

import tiny
import torch
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner


class Keep(Callback):
    def before_fit(self):
        self.seen = []

    def after_batch(self):
        if self.training:
            self.seen.append(torch.ones(50_000))  # leak: seen


random.seed(0)  # shuffles
rows = tiny.rows(80 * tiny.ROWS)
data = DataLoaders(DataLoader(rows, bs=32, shuffle=True), DataLoader(tiny.rows(64), bs=32), device="cpu")
learner = Learner(data, tiny.net(), loss_func=torch.nn.MSELoss(), cbs=[Keep()])
learner.fit(3)
print("loss", float(learner.recorder.losses[-1]))
