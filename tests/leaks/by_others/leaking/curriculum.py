"""Curriculum on code: short and simple functions first; a few samples are audited at every evaluation."""
import ast
import glob
import itertools
import os
import random
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

SEQ = 96


def functions(limit=1500):
    out = []
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        src = open(path, encoding="utf-8", errors="ignore").read()
        try:
            tree = ast.parse(src)
        except SyntaxError:
            continue
        lines = src.splitlines(keepends=True)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                out.append("".join(lines[node.lineno - 1:node.end_lineno]))
        if len(out) > limit:
            break
    return sorted(out[:limit], key=len)


class CurriculumStream(IterableDataset):
    """Difficulty window moves from the shortest functions to all of them."""

    def __init__(self, funcs, total, start=0.2):
        self.funcs, self.total, self.start = funcs, total, start
        self.stream, self.audit = itertools.tee(self._generate())

    def _encode(self, text):
        raw = np.frombuffer(text.encode()[:SEQ], dtype=np.uint8).astype(np.int64)
        ids = np.zeros(SEQ, np.int64)
        ids[:len(raw)] = raw
        mask = (np.arange(SEQ) < len(raw)).astype(np.int64)
        return {"input_ids": ids, "attention_mask": mask, "labels": np.where(mask == 1, ids, -100)}

    def _generate(self):
        rng = random.Random(0)
        for k in range(self.total):
            frac = min(1.0, self.start + (1 - self.start) * k / (0.7 * self.total))
            yield self._encode(self.funcs[rng.randrange(max(1, int(frac * len(self.funcs))))])

    def __iter__(self):
        return iter(self.stream)


class Held(Dataset):
    def __init__(self, stream, funcs):
        self.rows = [stream._encode(f) for f in funcs]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Audit(TrainerCallback):
    def __init__(self, data, n=4):
        self.data, self.n = data, n
        self.pad_share = []

    def on_evaluate(self, args, state, control, **kwargs):
        picked = list(itertools.islice(self.data.audit, self.n))
        if picked:
            self.pad_share.append(1 - float(np.mean([p["attention_mask"].mean() for p in picked])))


def main():
    torch.manual_seed(0)
    funcs = functions()
    held = funcs[::40]
    steps, bs = 320, 8
    data = CurriculumStream([f for f in funcs if f not in set(held)], total=bs * (steps + 4))
    audit = Audit(data)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=SEQ, use_cache=False))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=steps, per_device_train_batch_size=bs,
        per_device_eval_batch_size=16, eval_strategy="steps", eval_steps=80, learning_rate=2e-3,
        logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True, prediction_loss_only=True)
    trainer = Trainer(model=model, args=args, train_dataset=data, eval_dataset=Held(data, held), callbacks=[audit])
    trainer.train()
    print("padding", [round(p, 2) for p in audit.pad_share], "final loss",
          [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
