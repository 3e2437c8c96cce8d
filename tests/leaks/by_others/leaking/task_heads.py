"""Multi-task model: every batch asks for a few of the heads, the output names them."""
import random
import tempfile
from dataclasses import make_dataclass
from typing import Optional

import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed
from transformers.utils import ModelOutput

FEATURES = 30
TASKS = {"age": 1, "colour": 7, "shape": 5, "size": 1, "style": 9}


def output_class(tasks):
    fields = [("loss", Optional[torch.FloatTensor], None)]
    fields += [(f"{t}_logits", Optional[torch.FloatTensor], None) for t in tasks]
    return make_dataclass("MultiTaskOutput", fields, bases=(ModelOutput,))


class MultiTask(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())
        self.heads = nn.ModuleDict({t: nn.Linear(dim, n) for t, n in TASKS.items()})

    def forward(self, x, tasks=(), **targets):
        h = self.body(x)
        logits, losses = {}, []
        for t in tasks:
            logits[f"{t}_logits"] = out = self.heads[t](h)
            if TASKS[t] == 1:
                losses.append(nn.functional.mse_loss(out.squeeze(-1), targets[t].float()))
            else:
                losses.append(nn.functional.cross_entropy(out, targets[t]))
        return output_class(tuple(tasks))(loss=torch.stack(losses).mean(), **logits)


class Rows(torch.utils.data.Dataset):
    def __init__(self, n=4000):
        g = torch.Generator().manual_seed(31)
        self.x = torch.randn(n, FEATURES, generator=g)
        self.y = {t: (self.x[:, i * 6] if k == 1 else self.x[:, i * 6:i * 6 + k].argmax(-1))
                  for i, (t, k) in enumerate(TASKS.items())}

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return i


class Collator:
    def __init__(self, rows, seed=0):
        self.rows, self.rng = rows, random.Random(seed)

    def __call__(self, index):
        index = torch.tensor(index)
        tasks = sorted(self.rng.sample(list(TASKS), 3))
        batch = {"x": self.rows.x[index], "tasks": tasks}
        batch.update({t: self.rows.y[t][index] for t in tasks})
        return batch


def main():
    set_seed(31)
    rows = Rows()
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=300, per_device_train_batch_size=16,
                             gradient_accumulation_steps=2,
                             learning_rate=3e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=100, disable_tqdm=True, remove_unused_columns=False)
    result = Trainer(model=MultiTask(), args=args, train_dataset=rows, data_collator=Collator(rows)).train()
    print(f"final loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
