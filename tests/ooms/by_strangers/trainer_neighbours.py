"""A Trainer with a callback that looks for the nearest neighbours of all rows after each evaluation."""

import resource
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

MEMORY = 420
BATCH = 16
EVAL_BATCH = 64
EVAL_ROWS = 9000
STEPS = 40


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return {"x": torch.randn(32, generator=draw), "labels": index % 10}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 64))
        self.head = nn.Linear(64, 10)

    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(self.head(self.features(x)), labels)}


class Neighbours(TrainerCallback):
    """The share of rows whose nearest neighbour has the same label."""

    def __init__(self, rows):
        self.rows = rows
        self.hits = []

    def on_evaluate(self, args, state, control, model=None, **more):
        items = [self.rows[index] for index in range(len(self.rows))]
        labels = torch.tensor([item["labels"] for item in items])
        with torch.no_grad():
            features = model.features(torch.stack([item["x"] for item in items]))
            nearest = torch.cdist(features, features).fill_diagonal_(float("inf")).argsort(1)[:, 0]
        self.hits.append((labels[nearest] == labels).float().mean().item())


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=EVAL_BATCH,
        max_steps=STEPS,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        eval_strategy="steps",
        eval_steps=20,
    )
    held_out = Rows(EVAL_ROWS)
    trainer = Trainer(
        Net(), arguments, train_dataset=Rows(2000), eval_dataset=held_out, callbacks=[Neighbours(held_out)]
    )
    small_machine(MEMORY)
    trainer.train()
    print("finished")


if __name__ == "__main__":
    main()
