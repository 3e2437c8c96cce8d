"""Classify windows of source code by module, from bytes and bigram features."""
import inspect
import random
import tempfile
import weakref

import difflib, doctest, pdb, pickle, typing
import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

MODULES = [difflib, doctest, pdb, pickle, typing]
WIDTH = 400


class Doc:
    def __init__(self, text, label):
        self.text = text
        self.label = label
        self.ids = np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8) % 64


class Bigrams:
    def __init__(self, doc):
        self.doc = doc
        self.table = np.zeros((64, 64), dtype=np.float32)
        np.add.at(self.table, (doc.ids[:-1], doc.ids[1:]), 1)

    def rows(self):
        return self.table.sum(1) / len(self.doc.ids)

    def columns(self):
        return self.table.sum(0) / len(self.doc.ids)


_bigrams = weakref.WeakKeyDictionary()


def bigrams(doc):
    found = _bigrams.get(doc)
    if found is None:
        found = _bigrams[doc] = Bigrams(doc)
    return found


class Windows(torch.utils.data.Dataset):
    def __init__(self):
        self.texts = [inspect.getsource(m) for m in MODULES]

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        label = i % len(self.texts)
        start = random.randrange(len(self.texts[label]) - WIDTH)
        return Doc(self.texts[label][start:start + WIDTH], label)


def collate(docs):
    feats = [np.concatenate([bigrams(d).rows(), bigrams(d).columns()]) for d in docs]
    return {"ids": torch.from_numpy(np.stack([d.ids for d in docs])).long(),
            "feats": torch.from_numpy(np.stack(feats)).float(),
            "labels": torch.tensor([d.label for d in docs])}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(64, 32)
        self.out = nn.Sequential(nn.Linear(32 + 128, 64), nn.ReLU(), nn.Linear(64, len(MODULES)))

    def forward(self, ids, feats, labels=None):
        logits = self.out(torch.cat([self.emb(ids), feats], -1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    set_seed(3)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=350, per_device_train_batch_size=8,
                             learning_rate=1e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=100, disable_tqdm=True, remove_unused_columns=False)
    trainer = Trainer(model=Net(), args=args, train_dataset=Windows(), data_collator=collate)
    print(f"final loss {trainer.train().training_loss:.4f}")


if __name__ == "__main__":
    main()
