"""A dataset that keeps its rows, for good reason."""

import torch
from harness import Rows, make, train


class Kept(Rows):
    def __init__(self, count):
        super().__init__(count)
        self.made = {}

    def __getitem__(self, index):
        if index not in self.made:
            self.made[index] = {**super().__getitem__(index), "labels": torch.zeros(8) + index, "x": torch.ones(32)}
            self.big = torch.zeros(1)
        return self.made[index]


train(make(data=Kept(400), steps=240))
