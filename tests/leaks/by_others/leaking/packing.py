"""Packs several short snippets into one row with a block-diagonal attention mask."""
import collections
import glob
import os
import random
import tempfile

import torch
from torch.utils.data import Dataset, Sampler
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

ROW = 96


def snippets(limit=3000):
    out = []
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        for part in open(path, encoding="utf-8", errors="ignore").read().split("\n\n"):
            raw = part.strip().encode("ascii", "ignore")
            if 10 <= len(raw) <= 60:
                out.append(raw)
        if len(out) > limit:
            break
    return out[:limit]


class PackedRows(Dataset):
    """Each item is a list of snippets that together fill at most one row."""

    def __init__(self, parts, n=4000, seed=0):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            row, room = [], ROW
            while True:
                p = rng.choice(parts)
                if len(p) > room:
                    break
                row.append(p)
                room -= len(p)
            self.items.append(row)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return {"parts": self.items[i]}


class PackingCollator:
    def __init__(self):
        self.masks = {}
        self.hits = collections.Counter()

    def mask_for(self, lengths):
        if lengths in self.masks:
            self.hits["hit"] += 1
            return self.masks[lengths]
        self.hits["miss"] += 1
        seg = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        m = (seg[:, None] == seg[None, :]).tril()
        m = torch.zeros(m.shape).masked_fill(~m, torch.finfo(torch.float32).min)
        self.masks[lengths] = m
        return m

    def __call__(self, rows):
        ids, labels, masks = [], [], []
        for r in rows:
            lengths = tuple(len(p) for p in r["parts"])
            pad = ROW - sum(lengths)
            flat = [b for p in r["parts"] for b in p]
            ids.append(torch.tensor(flat + [0] * pad))
            lab = torch.tensor(flat + [-100] * pad)
            start = 0
            for n in lengths:
                lab[start] = -100
                start += n
            labels.append(lab)
            masks.append(self.mask_for(lengths + (pad,) if pad else lengths))
        return {"input_ids": torch.stack(ids), "labels": torch.stack(labels),
                "attention_mask": torch.stack(masks)[:, None]}


class FillReport(TrainerCallback):
    def __init__(self, collator):
        self.collator = collator

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None:
            h = self.collator.hits
            logs["mask_hits"] = round(h["hit"] / max(1, h["hit"] + h["miss"]), 3)


def main():
    set_seed(1)
    collator = PackingCollator()
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=ROW, use_cache=False))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=260, per_device_train_batch_size=8,
        learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False, weight_decay=0.01)
    trainer = Trainer(model=model, args=args, train_dataset=PackedRows(snippets()), data_collator=collator,
                      callbacks=[FillReport(collator)])
    trainer.train()
    print("final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
