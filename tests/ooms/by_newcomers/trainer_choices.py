"""Multiple choice with hard negatives: the collator makes one row of each choice; some questions have many choices."""

import resource
from pathlib import Path

import torch
from torch import nn
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

MEMORY = 200
BATCH = 8
ACCUM = 1
LENGTH = 48
NEGATIVES = 30
STEPS = 16


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        config = BertConfig(
            vocab_size=1_000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
        )
        self.bert = BertModel(config)
        self.score = nn.Linear(128, 1)

    def forward(self, input_ids, groups, labels=None):
        scores = self.score(self.bert(input_ids).pooler_output)[:, 0]
        parts = scores.split(groups)
        loss = torch.stack([nn.functional.cross_entropy(part[None], labels[:1] * 0) for part in parts]).mean()
        return {"loss": loss}


def questions(num):
    """Each with its number of wrong answers: 3 as a rule, NEGATIVES where the search engine found many."""
    return [{"number": number, "negatives": NEGATIVES if number >= 96 else 3} for number in range(num)]


def collate(examples):
    texts, groups = [], []
    for example in examples:
        groups.append(1 + example["negatives"])
        texts += [torch.randint(1_000, (LENGTH,)) for _ in range(groups[-1])]
    return {"input_ids": torch.stack(texts), "groups": groups, "labels": torch.zeros(len(examples), dtype=torch.long)}


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
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = InOrder(Ranker(), arguments, train_dataset=questions(240), data_collator=collate)
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
