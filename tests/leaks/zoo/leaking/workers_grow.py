"""A dataset that keeps what it has read, in each worker."""

# held: Remember.read
# leaks: self.read.append(torch.ones(8_000))
# mended: self.read = [torch.ones(8_000)]
# bytes: 128000

import torch
from harness import Rows, make, train


class Remember(Rows):
    def __init__(self, count):
        super().__init__(count)
        self.read = []

    def __getitem__(self, index):
        self.read.append(torch.ones(8_000))
        return super().__getitem__(index)


train(make(data=Remember(2_000), steps=300, dataloader_num_workers=1))
