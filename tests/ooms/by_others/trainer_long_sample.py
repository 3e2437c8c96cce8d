"""BERT classifier over whole functions; a few of them are very long."""
import ast
import resource
import tarfile
import tempfile
import typing

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForSequenceClassification, Trainer, TrainerCallback,
                          TrainingArguments)

MAX_LENGTH = 4000
BATCH = 4
STEPS = 60
ROOM_MIB = 180


def set_limit(mib):
    line = next(s for s in open("/proc/self/status") if s.startswith("VmData"))
    n = int(line.split()[1]) * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (n, n))


class Limit(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        set_limit(ROOM_MIB)


class Functions(Dataset):
    """Label: does the function return something? Short ones, and a whole class at place 100."""

    def __init__(self):
        self.rows = []
        for module in (tarfile, typing):
            text = open(module.__file__, encoding="utf-8").read()
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    body = ast.get_source_segment(text, node)
                    if len(body) < 160:
                        self.rows.append(body)
        text = open(tarfile.__file__, encoding="utf-8").read()
        self.rows.insert(100, text[text.index("class TarFile"):])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"text": self.rows[i]}


def collate(rows):
    ids = [torch.tensor([min(ord(c), 127) for c in r["text"][:MAX_LENGTH]]) for r in rows]
    labels = torch.tensor([int("return" in r["text"]) for r in rows])
    x = pad_sequence(ids, batch_first=True)
    return {"input_ids": x, "attention_mask": (x > 0).long(), "labels": labels}


class InOrder(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2,
                        num_attention_heads=2, intermediate_size=64,
                        max_position_embeddings=4096, attn_implementation="eager")
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=STEPS, per_device_train_batch_size=BATCH, logging_steps=10,
            save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
            remove_unused_columns=False)
        InOrder(model=BertForSequenceClassification(config), args=args, train_dataset=Functions(),
                data_collator=collate, callbacks=[Limit()]).train()
    print("finished")


if __name__ == "__main__":
    main()
