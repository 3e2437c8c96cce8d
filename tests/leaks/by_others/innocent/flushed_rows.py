"""Byte model whose statistics of every step are collected and written to a file every hundred steps.

After: https://github.com/taylorhansen/pokemonshowdown-ai/issues/358
"""
import gzip
import inspect
import json
import pathlib
import tempfile

import mimetypes
import netrc
import quopri
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

LENGTH = 64


class Corpus(Dataset):
    def __init__(self):
        text = "".join(inspect.getsource(module) for module in (mimetypes, netrc, quopri, json.decoder))
        codes = torch.tensor([min(ord(c), 127) for c in text])
        self.rows = codes[: len(codes) // LENGTH * LENGTH].view(-1, LENGTH)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Statistics(TrainerCallback):
    """A row per weight and step, with a histogram; rows are compressed when there are enough."""

    def __init__(self, folder, every=100, bins=24):
        self.folder, self.every, self.bins = pathlib.Path(folder), every, bins
        self.rows = []
        self.files = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for name, weight in model.named_parameters():
            grad = weight.grad
            edge = grad.abs().max().item() + 1e-12
            self.rows.append({
                "step": state.global_step, "name": name, "norm": grad.norm().item(), "edge": edge,
                "histogram": torch.histc(grad.float(), self.bins, -edge, edge).tolist(),
                "weight": torch.histc(weight.detach(), self.bins).tolist()})
        if state.global_step % self.every == self.every - 1:
            self.flush(state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        if self.rows:
            self.flush(state.global_step)

    def flush(self, step):
        path = self.folder / f"rows-{step:06d}.jsonl.gz"
        with gzip.open(path, "wt") as file:
            for row in self.rows:
                file.write(json.dumps(row) + "\n")
        print(f"{len(self.rows)} rows to {path.name}, {path.stat().st_size / 1024:.0f} KiB", flush=True)
        self.rows.clear()
        self.files.append(path)


def main():
    set_seed(7)
    folder = tempfile.mkdtemp()
    statistics = Statistics(folder)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=128, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
        use_cache=False))
    arguments = TrainingArguments(
        folder, max_steps=450, per_device_train_batch_size=8, learning_rate=2e-3, use_cpu=True, logging_steps=90,
        report_to=[], save_strategy="no", disable_tqdm=True)
    Trainer(model, arguments, train_dataset=Corpus(), callbacks=[statistics]).train()
    total = sum(sum(1 for _ in gzip.open(path, "rt")) for path in statistics.files)
    print(f"{total} rows in {len(statistics.files)} files")


if __name__ == "__main__":
    main()
