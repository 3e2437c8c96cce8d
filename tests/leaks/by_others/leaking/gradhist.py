"""BERT-ish classifier of source lines; logs loss, lr and the distribution of the gradients every few steps."""
import collections
import glob
import os
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments,
                          set_seed)

LEN = 48
KINDS = ("def", "import", "return", "if", "comment", "other")


def kind(line):
    s = line.strip()
    if s.startswith("#"):
        return 4
    for k, w in enumerate(KINDS[:4]):
        if s.startswith(w + " ") or s.startswith("from ") and w == "import":
            return k
    return 5


class LineDataset(Dataset):
    def __init__(self, paths, per_class=400):
        buckets = collections.defaultdict(list)
        for p in paths:
            for line in open(p, encoding="utf-8", errors="ignore"):
                if len(line.strip()) > 8 and len(buckets[kind(line)]) < per_class:
                    buckets[kind(line)].append(line.strip())
        self.rows = [(text, k) for k in sorted(buckets) for text in buckets[k]]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        text, k = self.rows[i]
        raw = list(text.encode()[:LEN])
        ids = torch.tensor(raw + [0] * (LEN - len(raw)))
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": k}


class UpdateStatsTrainer(Trainer):
    """Logs the distribution of the gradients next to the loss."""

    bins = np.linspace(-8, 0, 2049)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.window = collections.deque(maxlen=20)

    def training_step(self, model, inputs, *args, **kwargs):
        loss = super().training_step(model, inputs, *args, **kwargs)
        if self.state.global_step % 3 == 0:
            grads = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            logmag = grads.abs().clamp_min(1e-8).log10().numpy()
            hist, _ = np.histogram(logmag, bins=self.bins, density=True)
            self.window.append(float(grads.norm()))
            self.log({
                "step_loss": loss.item(),
                "grad_norm_avg": float(np.mean(self.window)),
                "grad_hist": hist.round(4).tolist(),
            })
        return loss


def metrics(p):
    pred = p.predictions.argmax(-1)
    return {"acc": float((pred == p.label_ids).mean())}


def main():
    set_seed(8)
    paths = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "[a-d]*.py")))
    ds = LineDataset(paths)
    train, val = torch.utils.data.random_split(ds, [len(ds) - 200, 200])
    model = BertForSequenceClassification(BertConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LEN, num_labels=len(KINDS)))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=300, per_device_train_batch_size=16,
        per_device_eval_batch_size=50, eval_strategy="steps", eval_steps=100, learning_rate=1e-3,
        logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = UpdateStatsTrainer(model=model, args=args, train_dataset=train, eval_dataset=val,
                                 compute_metrics=metrics)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    acc = [h["eval_acc"] for h in trainer.state.log_history if "eval_acc" in h][-1]
    print("acc", acc, "final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
