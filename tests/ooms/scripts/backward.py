"""The way back takes more than the way there."""

import torch
from common import arguments, leave, make

own, args = arguments(per_device_train_batch_size=8, max_steps=16, remove_unused_columns=False)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(256, 256)
        self.outer = torch.nn.Linear(256, 16)

    def forward(self, x, labels):
        hidden = self.inner(x)
        for _ in range(3):
            hidden = torch.tanh(hidden)
        return {"loss": self.outer(hidden).square().mean()}


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return {"number": 100 + 20 * (index // 8 % 10) if index < 80 else 10_000}


def collate(rows):
    number = max(row["number"] for row in rows)
    return {"x": torch.randn(len(rows), number, 256)[:, : own.max_length or number], "labels": torch.zeros(len(rows))}


trainer = make(Net(), args, Points(), collator=collate)
# phase: backward
leave(490)
trainer.train()
