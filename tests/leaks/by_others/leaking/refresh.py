"""Masked-byte model; a probe set is re-drawn every few steps from the region with the highest loss."""
import ssl, smtplib, socket, shutil, subprocess, statistics, string, inspect
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

SEQ, MASK, VOCAB = 64, 256, 257


class Corpus(Dataset):
    def __init__(self):
        src = "".join(inspect.getsource(m) for m in (ssl, smtplib, socket, shutil, subprocess, statistics, string))
        self.raw = np.frombuffer(src.encode(), dtype=np.uint8)

    def __len__(self):
        return len(self.raw) // SEQ

    def __getitem__(self, i):
        return {"input_ids": self.raw[i * SEQ:(i + 1) * SEQ].astype(np.int64)}


class ProbeSet(Dataset):
    def __init__(self, corpus, center, n=400, spread=60):
        rng = np.random.default_rng(center)
        picks = np.clip(rng.normal(center, spread, n).astype(int), 0, len(corpus) - 1)
        ids = np.stack([corpus[int(i)]["input_ids"] for i in picks])
        hide = rng.random(ids.shape) < 0.15
        self.input_ids = np.where(hide, MASK, ids)
        self.labels = np.where(hide, ids, -100)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.input_ids[i], "labels": self.labels[i]}


def mask_collator(rows):
    ids = torch.from_numpy(np.stack([r["input_ids"] for r in rows]))
    if "labels" in rows[0]:
        return {"input_ids": ids, "labels": torch.from_numpy(np.stack([r["labels"] for r in rows]))}
    hide = torch.rand(ids.shape) < 0.15
    return {"input_ids": ids.masked_fill(hide, MASK), "labels": ids.masked_fill(~hide, -100)}


class ProbeCallback(TrainerCallback):
    def __init__(self, corpus, every=10):
        self.corpus, self.every = corpus, every
        self.trainer = None
        self.region = np.ones(16)
        self.history = np.zeros((16, 2))

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every:
            return
        r = int(np.random.choice(16, p=self.region / self.region.sum()))
        probe = ProbeSet(self.corpus, center=(2 * r + 1) * len(self.corpus) // 32)
        loader = self.trainer.accelerator.prepare(DataLoader(probe, batch_size=32, collate_fn=mask_collator))
        model.eval()
        losses = []
        for k, batch in enumerate(loader):
            losses.append(model(**batch).loss.item())
            if k == 1:
                break
        model.train()
        self.region[r] = np.mean(losses) ** 2
        self.history[r] += (np.mean(losses), 1)


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    corpus = Corpus()
    model = BertForMaskedLM(BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2,
                                       num_attention_heads=2, intermediate_size=64, max_position_embeddings=SEQ))
    cb = ProbeCallback(corpus)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=300, per_device_train_batch_size=8,
        learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = Trainer(model=model, args=args, train_dataset=corpus, data_collator=mask_collator, callbacks=[cb])
    cb.trainer = trainer
    trainer.train()
    print("regions probed", int((cb.history[:, 1] > 0).sum()), "final loss",
          [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
