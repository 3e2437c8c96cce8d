"""Adapters are trained; each checkpoint has the merged weights, ready for a server."""

import resource
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

MEMORY = 290
WIDTH = 2_048
LAYERS = 8
RANK = 8
BATCH = 8
ACCUM = 1
STEPS = 30
SAVE = "steps"
OPTIMIZER = "adamw_torch"


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Adapted(nn.Module):
    """A frozen linear layer and a trained product of two small matrices."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False)
        self.base.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, WIDTH) / WIDTH)
        self.up = nn.Parameter(torch.zeros(WIDTH, RANK))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T

    def merged(self):
        return self.base.weight + self.up @ self.down


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Adapted() for _ in range(LAYERS))

    def forward(self, x, labels=None):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return {"loss": (x.mean(1) - labels).square().mean()}


class MergingTrainer(Trainer):
    def _save(self, output_dir=None, state_dict=None):
        with torch.no_grad():
            merged = {f"layers.{number}.weight": layer.merged() for number, layer in enumerate(self.model.layers)}
        super()._save(output_dir, state_dict=merged)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    small_machine(MEMORY)
    model = Net()
    rows = [{"x": torch.randn(WIDTH), "labels": torch.rand(())} for _ in range(64)]
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        max_steps=STEPS,
        optim=OPTIMIZER,
        save_strategy=SAVE,
        save_steps=15,
        save_total_limit=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    MergingTrainer(model, arguments, train_dataset=rows).train()
    print("done")


if __name__ == "__main__":
    main()
