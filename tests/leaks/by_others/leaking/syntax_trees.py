"""Predict the kind of syntax nodes from their context in the tree."""
import ast
import gc
import inspect
import random
import tempfile

import asyncio.base_events, calendar, configparser, cmd, csv, shelve
import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

KINDS = {name: i for i, name in enumerate(sorted(
    n for n, c in vars(ast).items() if isinstance(c, type) and issubclass(c, ast.AST)))}
NODES = 96


def functions(*modules):
    found = []
    for module in modules:
        source = inspect.getsource(module)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                text = ast.unparse(node)
                if 200 < len(text) < 900:
                    found.append(text)
    return found


def annotate(tree):
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.Load, ast.Store, ast.operator, ast.cmpop)):
                child.parent = node
    return tree


class Trees(torch.utils.data.Dataset):
    def __init__(self, sources):
        self.sources = sources

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        tree = annotate(ast.parse(self.sources[i % len(self.sources)]))
        nodes = [n for n in ast.walk(tree) if hasattr(n, "parent")]
        random.shuffle(nodes)
        rows = []
        for n in (nodes * NODES)[:NODES]:
            up = n.parent
            upper = getattr(up, "parent", up)
            rows.append([KINDS[type(up).__name__], KINDS[type(upper).__name__], KINDS[type(n).__name__]])
        rows = torch.tensor(rows)
        return {"context": rows[:, :2], "labels": rows[:, 2]}


class KindModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(len(KINDS), dim)
        self.out = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, len(KINDS)))

    def forward(self, context, labels=None):
        logits = self.out(self.emb(context).flatten(2))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
                "logits": logits}


def main():
    set_seed(10)
    sources = functions(asyncio.base_events, calendar, configparser, cmd, csv, shelve)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=250, per_device_train_batch_size=4,
                             learning_rate=3e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=125, disable_tqdm=True, remove_unused_columns=False)
    trainer = Trainer(model=KindModel(), args=args, train_dataset=Trees(sources))
    gc.collect()
    gc.disable()
    result = trainer.train()
    gc.enable()
    print(f"final loss {result.training_loss:.4f} on {len(sources)} functions")


if __name__ == "__main__":
    main()
