"""Learns an initialization from which few gradient steps fit a new wave: meta-learning with second order.

After: https://github.com/pytorch/pytorch/issues/4661
"""
import argparse
import collections
import copy
import math
import warnings

import torch
from torch import nn
from torch.func import functional_call

warnings.filterwarnings("ignore", message=".*create_graph=True.*")
SHOTS, INNER_RATE = 16, 0.02


class Waves:
    """Sine waves of random amplitude and phase; a task is one of them."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def task(self):
        amplitude = 0.5 + 2 * torch.rand(1, generator=self.generator)
        phase = math.pi * torch.rand(1, generator=self.generator)
        points = torch.rand(2 * SHOTS, 1, generator=self.generator) * 10 - 5
        values = amplitude * torch.sin(points + phase)
        return (points[:SHOTS], values[:SHOTS]), (points[SHOTS:], values[SHOTS:])


def make_model(width=64):
    return nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def adapted(model, support):
    """The weights after one step on the support set, as functions of the weights before."""
    learner = copy.deepcopy(model)
    x, y = support
    loss = nn.functional.mse_loss(learner(x), y)
    loss.backward(create_graph=True)
    start = dict(model.named_parameters())
    return {name: start[name] - INNER_RATE * p.grad for name, p in learner.named_parameters()}, loss.detach()


def outer_loss(model, task):
    support, query = task
    fast, before = adapted(model, support)
    prediction = functional_call(model, fast, (query[0],))
    return nn.functional.mse_loss(prediction, query[1]), before


def evaluate(model, waves, tasks=20, steps=5):
    """Mean error after a few plain steps on tasks that were not seen."""
    errors = []
    for _ in range(tasks):
        (x, y), (query, target) = waves.task()
        learner = copy.deepcopy(model)
        optimizer = torch.optim.SGD(learner.parameters(), lr=INNER_RATE)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(learner(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            errors.append(nn.functional.mse_loss(learner(query), target).item())
    return sum(errors) / len(errors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--tasks", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    model, waves = make_model(), Waves(seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recent = collections.deque(maxlen=40)
    best = (math.inf, 0)
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        for _ in range(options.tasks):
            loss, before = outer_loss(model, waves.task())
            (loss / options.tasks).backward()
            recent.append((before.item(), loss.item()))
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 80 == 0:
            error = evaluate(model, Waves(seed=99))
            best = min(best, (error, step))
            before, after = (sum(column) / len(recent) for column in zip(*recent))
            print(f"step {step}: {before:.3f} before a step, {after:.3f} after, {error:.3f} on new waves", flush=True)
    print(f"best {best[0]:.3f} at step {best[1]}")


if __name__ == "__main__":
    main()
