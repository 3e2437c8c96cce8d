"""A Trainer whose collator packs documents and makes a mask of all pairs of positions for each row."""

import resource
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

MEMORY = 450
BATCH = 8
ACCUM = 1
MAX_LENGTH = 4096
DTYPE = torch.float32
STEPS = 24


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


class Packs(torch.utils.data.Dataset):
    """Rows of several documents; from row 100 on longer ones are read."""

    def __len__(self):
        return 240

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        length = min(256 + 16 * (index % 10) if index < 100 else 3072, MAX_LENGTH)
        ends = torch.randint(1, 4, (length,), generator=draw).cumsum(0) // 200
        return {"input_ids": torch.randint(500, (length,), generator=draw), "document": ends}


def collate(rows):
    length = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.full((len(rows), 1, length, length), -1e9, dtype=DTYPE)
    for row, target, scores in zip(rows, ids, mask[:, 0], strict=True):
        n = len(row["input_ids"])
        target[:n] = row["input_ids"]
        same = row["document"][:, None] == row["document"][None, :]
        scores[:n, :n].masked_fill_(same.tril(), 0.0)
    return {"input_ids": ids, "mask": mask}


class Local(nn.Module):
    """A small model that reads only a band of the mask."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 32)
        self.out = nn.Linear(32, 500)

    def forward(self, input_ids, mask):
        near = mask.diagonal(-1, 2, 3)[:, 0].float().exp()
        x = self.embed(input_ids)
        x = x[:, 1:] + near[..., None] * x[:, :-1]
        return {"loss": nn.functional.cross_entropy(self.out(x).flatten(0, 1), input_ids[:, 1:].flatten())}


class InOrder(Trainer):
    def _get_train_sampler(self, *unused):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        max_steps=STEPS,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = InOrder(Local(), arguments, train_dataset=Packs(), data_collator=collate)
    small_machine(MEMORY)
    trainer.train()
    print("finished")


if __name__ == "__main__":
    main()
