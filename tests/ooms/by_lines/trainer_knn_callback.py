"""A Trainer whose callback judges the representation after each epoch by the nearest neighbours of all samples."""

import resource
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

MEMORY = 130
BATCH = 32
SAMPLES = 6_000


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))
        self.head = nn.Linear(32, 5)

    def forward(self, x, labels=None):
        logits = self.head(self.body(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Neighbours(TrainerCallback):
    def __init__(self, x, labels):
        self.x, self.labels = x, labels

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        model.eval()
        with torch.no_grad():
            feats = model.body(self.x)
        distances = torch.cdist(feats, feats).fill_diagonal_(float("inf"))
        nearest = distances.argmin(dim=1)
        print(f"1-NN: {(self.labels[nearest] == self.labels).float().mean():.3f}")
        model.train()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, labels = torch.rand(SAMPLES, 64), torch.randint(5, (SAMPLES,))
    rows = [{"x": one, "labels": label} for one, label in zip(x[:1_000], labels[:1_000], strict=True)]
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        num_train_epochs=2,
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(Net(), arguments, train_dataset=rows, callbacks=[Neighbours(x, labels)])
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
