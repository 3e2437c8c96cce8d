"""Contrastive training against a fixed table of earlier sequences of various lengths."""
import random
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

DIM, SLOTS = 24, 64


class Ragged(torch.utils.data.Dataset):
    def __len__(self):
        return 6000

    def __getitem__(self, i):
        rng = random.Random(i)
        n = rng.randint(8, 120)
        centre = torch.randn(DIM, generator=torch.Generator().manual_seed(i % 40))
        return centre + 0.5 * torch.randn(n, DIM, generator=torch.Generator().manual_seed(i))


def collate(rows):
    return {"sequences": rows}


class Pooler(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(DIM, DIM)
        self.score = nn.Linear(DIM, 1)
        self.slots = [None] * SLOTS
        self.rng = random.Random(0)

    def pool(self, seq):
        h = self.proj(seq)
        return (self.score(seq).softmax(0) * h).sum(0)

    def forward(self, sequences):
        a = torch.stack([self.pool(s[::2]) for s in sequences])
        b = torch.stack([self.pool(s[1::2]) for s in sequences])
        old = [s for s in self.slots if s is not None]
        others = [self.pool(s) for s in self.rng.sample(old, min(4, len(old)))]
        keys = torch.cat([b, torch.stack(others).detach()]) if others else b
        logits = nn.functional.normalize(a, dim=-1) @ nn.functional.normalize(keys, dim=-1).T / 0.2
        for s in sequences:
            self.slots[self.rng.randrange(SLOTS)] = s.clone()
        return {"loss": nn.functional.cross_entropy(logits, torch.arange(len(sequences))), "logits": logits}


def main():
    set_seed(9)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=300, per_device_train_batch_size=8,
                             learning_rate=2e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=150, disable_tqdm=True, remove_unused_columns=False)
    result = Trainer(model=Pooler(), args=args, train_dataset=Ragged(), data_collator=collate).train()
    print(f"final loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
