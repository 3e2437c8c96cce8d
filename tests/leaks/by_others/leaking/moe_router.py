"""Byte-level language model with a small mixture-of-experts block."""
import inspect
import tempfile
from collections import defaultdict

import argparse as source_a
import tarfile as source_b
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

DIM, EXPERTS, SEQ, VOCAB = 32, 4, 64, 128


class Bytes(Dataset):
    def __init__(self, *modules):
        raw = "\n".join(inspect.getsource(m) for m in modules).encode()
        self.ids = torch.tensor(list(raw), dtype=torch.long).clamp(max=VOCAB - 1)

    def __len__(self):
        return (len(self.ids) - 1) // SEQ

    def __getitem__(self, i):
        x = self.ids[i * SEQ:(i + 1) * SEQ]
        return {"input_ids": x, "labels": self.ids[i * SEQ + 1:(i + 1) * SEQ + 1]}


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
            for _ in range(EXPERTS))
        self.usage = {"count": torch.zeros(EXPERTS), "tokens": defaultdict(list)}

    def forward(self, x):
        flat = x.reshape(-1, DIM)
        probs = self.gate(flat).softmax(-1)
        weight, chosen = probs.max(-1)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            mask = chosen == e
            if self.training:
                self.usage["count"][e] += mask.sum()
                self.usage["tokens"][e].append(flat[mask].detach())
            out = out + expert(flat) * (weight * mask)[:, None]
        frac = torch.nn.functional.one_hot(chosen, EXPERTS).float().mean(0)
        self.balance = EXPERTS * (frac * probs.mean(0)).sum()
        return x + out.view_as(x)

    def centroids(self):
        return torch.stack([torch.cat(self.usage["tokens"][e][-1:] or [torch.zeros(1, DIM)]).mean(0)
                            for e in range(EXPERTS)])


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.mix = nn.Conv1d(DIM, DIM, 4, padding=3)
        self.moe = MoE()
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, input_ids, labels=None):
        x = self.embed(input_ids)
        h = self.moe(x + self.mix(x.transpose(1, 2))[..., :SEQ].transpose(1, 2).relu())
        logits = self.head(h)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss + 0.01 * self.moe.balance, "logits": logits}


def main():
    set_seed(1)
    model = TinyLM()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, max_steps=400, per_device_train_batch_size=4,
                                 learning_rate=3e-3, use_cpu=True, report_to=[], save_strategy="no",
                                 logging_steps=100, disable_tqdm=True)
        result = Trainer(model=model, args=args, train_dataset=Bytes(source_a, source_b)).train()
    spread = model.moe.centroids().nan_to_num().std().item()
    print(f"final loss {result.training_loss:.4f}, centroid spread {spread:.3f}")


if __name__ == "__main__":
    main()
