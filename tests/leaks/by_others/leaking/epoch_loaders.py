"""Regression on mixtures whose noise shrinks from round to round; each round has its own data loader.

After: https://github.com/pytorch/pytorch/issues/22133
"""
import collections
import dataclasses
import statistics

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, STEPS_A_ROUND = 40, 15


@dataclasses.dataclass
class Round:
    number: int
    noise: float
    loss: float = float("nan")


class Mixtures(Dataset):
    def __init__(self, noise, size=640):
        self.noise, self.size = noise, size
        self.weights = np.random.default_rng(0).normal(size=(FEATURES, 3))

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        rng = np.random.default_rng((index, int(1e6 * self.noise)))
        basis = rng.normal(size=(200, FEATURES))
        x = np.tanh(basis).mean(0) * 10 + self.noise * rng.normal(size=FEATURES)
        return x.astype(np.float32), np.sin(x @ self.weights * 0.2).astype(np.float32)


class Rounds:
    """Hands out the data of one round after the other, without a pause at the change."""

    def __init__(self, count, batch_size=32):
        self.batch_size = batch_size
        self.plan = [Round(n, noise=1.0 * 0.9 ** n) for n in range(count)]
        self.loaders = {}

    def iterator(self, number):
        if number not in self.loaders:
            loader = DataLoader(
                Mixtures(self.plan[number].noise), self.batch_size, shuffle=True, num_workers=1,
                persistent_workers=True, drop_last=True)
            self.loaders[number] = loader, iter(loader)
        return self.loaders[number][1]

    def batches(self, number):
        ready = self.iterator(number)
        if number + 1 < len(self.plan):
            self.iterator(number + 1)  # its worker begins to work
        for _ in range(STEPS_A_ROUND):
            yield next(ready)


def make_model():
    return nn.Sequential(
        nn.Linear(FEATURES, 128), nn.SiLU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 3))


@torch.no_grad()
def validate(model, rows=64):
    data = Mixtures(noise=0.0)
    x, y = (torch.from_numpy(np.stack(column)) for column in zip(*(data[10_000 + i] for i in range(rows))))
    return nn.functional.mse_loss(model(x), y).item()


def main(rounds=22):
    torch.manual_seed(0)
    model = make_model()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    source = Rounds(rounds)
    gaps = collections.deque(maxlen=5)
    for this in source.plan:
        losses = []
        for x, y in source.batches(this.number):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            average.update_parameters(model)
            losses.append(loss.item())
        this.loss = statistics.mean(losses)
        gaps.append(validate(model) - validate(average))
        if this.number % 4 == 3:
            print(f"round {this.number}: noise {this.noise:.2f} loss {this.loss:.4f} gap {statistics.mean(gaps):+.4f}",
                  flush=True)
    best = min(source.plan, key=lambda r: r.loss)
    print(f"best round {best}")


if __name__ == "__main__":
    main()
