"""Denoising of short clips; each augmented clip is an object that knows which clip it was made from.

After: https://github.com/iree-org/iree-turbine/issues/281
"""
import itertools
import random
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

RATE, SECONDS = 2000, 0.5


class Clip:
    """A piece of sound. Clips are found by their number, so that a derived clip can name its parent."""

    numbers = itertools.count()
    known = {}

    def __init__(self, samples, parent=None, made_by="recorded"):
        self.number = next(self.numbers)
        self.samples = samples
        self.parent = parent
        self.made_by = made_by
        self.known[self.number] = self

    def lineage(self):
        steps, clip = [], self
        while clip is not None:
            steps.append(clip.made_by)
            clip = self.known.get(clip.parent)
        return tuple(reversed(steps))


def shifted(clip, by):
    return Clip(np.roll(clip.samples, by), clip.number, "shifted")


def louder(clip, gain):
    return Clip(np.clip(clip.samples * gain, -1, 1), clip.number, "louder")


def echo(clip, delay):
    late = np.concatenate([np.zeros(delay, np.float32), clip.samples[:-delay]])
    return Clip(0.7 * clip.samples + 0.3 * late, clip.number, "echo")


class Recordings(Dataset):
    def __init__(self, count=200):
        rng = np.random.default_rng(0)
        time = np.arange(int(RATE * SECONDS), dtype=np.float32) / RATE
        self.clips = [
            Clip(sum(np.sin(2 * np.pi * f * time) for f in rng.uniform(60, 500, 3)).astype(np.float32) / 3)
            for _ in range(count)]
        self.rng = random.Random(1)
        self.counts = {}

    def __len__(self):
        return len(self.clips) * 50

    def augmented(self, clip):
        for _ in range(self.rng.randint(0, 2)):
            kind = self.rng.randrange(3)
            if kind == 0:
                clip = shifted(clip, self.rng.randrange(1, 400))
            elif kind == 1:
                clip = louder(clip, self.rng.uniform(0.5, 1.5))
            else:
                clip = echo(clip, self.rng.randrange(20, 200))
        return clip

    def __getitem__(self, index):
        clip = self.augmented(self.clips[index % len(self.clips)])
        lineage = clip.lineage()
        self.counts[lineage] = self.counts.get(lineage, 0) + 1
        clean = torch.from_numpy(clip.samples).float()
        return {"noisy": clean + 0.2 * torch.randn_like(clean), "labels": clean}


class Denoiser(nn.Module):
    def __init__(self, channels=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, channels, 15, padding=7), nn.GELU(), nn.Conv1d(channels, channels, 15, padding=14, dilation=2),
            nn.GELU(), nn.Conv1d(channels, 1, 15, padding=7))

    def forward(self, noisy, labels=None):
        clean = noisy + self.net(noisy[:, None])[:, 0]
        return {"loss": nn.functional.mse_loss(clean, labels), "clean": clean}


class Lineages(TrainerCallback):
    def on_log(self, args, state, control, logs=None, train_dataloader=None, **kwargs):
        counts = train_dataloader.dataset.counts
        top = sorted(counts, key=counts.get, reverse=True)[:3]
        print(state.global_step, logs.get("loss"), [" > ".join(lineage) for lineage in top])


if __name__ == "__main__":
    set_seed(8)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=350, per_device_train_batch_size=12, learning_rate=2e-3, use_cpu=True,
        logging_steps=70, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False)
    Trainer(Denoiser(), arguments, train_dataset=Recordings(), callbacks=[Lineages()]).train()
