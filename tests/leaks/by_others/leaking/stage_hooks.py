"""Self-distillation in short stages with accelerate: each stage has a frozen teacher, saved with the state.

After: https://github.com/fffasttime/MRFI/pull/5
"""
import argparse
import collections
import copy
import json
import pathlib
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, CLASSES = 48, 12


class Rings(Dataset):
    """Points on noisy rings in many dimensions."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        basis = torch.randn(2, FEATURES, generator=torch.Generator().manual_seed(0))
        self.labels = torch.randint(CLASSES, (count,), generator=generator)
        angle = 2 * torch.pi * torch.rand(count, generator=generator)
        radius = 1 + self.labels + 0.3 * torch.randn(count, generator=generator)
        self.points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1) @ basis / 4

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.points[index], self.labels[index]


def make_model(width=96):
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES))


class Stages:
    """Replaces the teacher by the student every few steps and sees to it that it is saved."""

    def __init__(self, accelerator, length):
        self.accelerator, self.length = accelerator, length
        self.number = 0
        self.teacher = None

    def maybe_next(self, step, student):
        if step % self.length:
            return
        self.number += 1
        teacher = copy.deepcopy(self.accelerator.unwrap_model(student)).requires_grad_(False)
        number = self.number

        def save_teacher(models, weights, folder):
            if number == self.number:
                torch.save(teacher.state_dict(), pathlib.Path(folder) / "teacher.pt")

        self.accelerator.register_save_state_pre_hook(save_teacher)
        self.teacher = teacher

    def loss(self, points, logits):
        if self.teacher is None:
            return torch.zeros(())
        with torch.no_grad():
            target = self.teacher(points).softmax(-1)
        return nn.functional.kl_div(logits.log_softmax(-1), target, reduction="batchmean")


@torch.no_grad()
def accuracy(accelerator, model, loader):
    right = [accelerator.gather_for_metrics((model(x).argmax(-1) == y).float()) for x, y in loader]
    return torch.cat(right).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--stage", type=int, default=4)
    options = parser.parse_args()
    set_seed(0)
    folder = tempfile.mkdtemp()
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2,
        project_config=ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=2))
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train = DataLoader(Rings(4000, 1), 64, shuffle=True)
    held_out = DataLoader(Rings(500, 2), 250)
    model, optimizer, train, held_out = accelerator.prepare(model, optimizer, train, held_out)
    stages = Stages(accelerator, options.stage)
    recent, step = collections.deque(maxlen=60), 0
    while step < options.steps:
        for points, labels in train:
            with accelerator.accumulate(model):
                logits = model(points)
                loss = nn.functional.cross_entropy(logits, labels) + 0.3 * stages.loss(points, logits)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            recent.append(loss.item())
            if not accelerator.sync_gradients:
                continue
            step += 1
            stages.maybe_next(step, model)
            if step % 125 == 0:
                accelerator.save_state()
                right = accuracy(accelerator, model, held_out)
                row = {"step": step, "loss": sum(recent) / len(recent), "accuracy": right, "stage": stages.number}
                accelerator.print(json.dumps(row), flush=True)
            if step >= options.steps:
                break


if __name__ == "__main__":
    main()
