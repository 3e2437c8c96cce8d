"""Noisy-label classifier; a loss spike can be replayed from the state of its step."""
import random
import tempfile

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

FEATURES, CLASSES = 40, 6


def snapshot():
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def restore(state):
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])


class Replay(TrainerCallback):
    def __init__(self, threshold=2.5, context=3):
        self.threshold, self.context = threshold, context
        self.states, self.losses, self.spikes = {}, {}, []

    def on_step_begin(self, args, state, control, **kw):
        self.states[state.global_step] = snapshot()

    def on_step_end(self, args, state, control, **kw):
        step = state.global_step - 1
        recent = [self.losses[s] for s in range(step - 20, step) if s in self.losses]
        if len(recent) == 20 and self.losses[step] > self.threshold * np.mean(recent):
            self.spikes.append({s: self.states[s] for s in range(step - self.context, step + 1)})
        self.losses.pop(step - 20, None)


class Mixed(torch.utils.data.Dataset):
    def __init__(self, n=3000):
        g = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, FEATURES, generator=g)
        self.y = (self.x @ torch.randn(FEATURES, CLASSES, generator=g)).argmax(-1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        lam = np.random.beta(8, 1)
        j = random.randrange(len(self.y))
        label = int(self.y[i]) if random.random() > 0.05 else random.randrange(CLASSES)
        return {"x": lam * self.x[i] + (1 - lam) * self.x[j], "labels": label}


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 96), nn.ReLU(), nn.Dropout(0.1),
                                 nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, CLASSES))

    def forward(self, x, labels=None):
        logits = self.net(x.float())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class ReplayTrainer(Trainer):
    replay = None

    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        loss, out = super().compute_loss(model, inputs, return_outputs=True, **kw)
        self.replay.losses[self.state.global_step] = loss.item()
        return (loss, out) if return_outputs else loss


if __name__ == "__main__":
    set_seed(12)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=16,
                             learning_rate=2e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=200, disable_tqdm=True, remove_unused_columns=False)
    replay = Replay()
    trainer = ReplayTrainer(model=MLP(), args=args, train_dataset=Mixed(), callbacks=[replay])
    trainer.replay = replay
    loss = trainer.train().training_loss
    for spike in replay.spikes[:1]:
        restore(next(iter(spike.values())))
    print(f"final loss {loss:.4f}, {len(replay.spikes)} spikes")
