"""Masked LM on stdlib source with Trainer, plots gradients at the end."""
import collections
import heapq
import os
import random
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

MAX_LEN = 40
MASK, PAD = 1, 0
STEPS = 300


def words():
    with open(random.__file__) as f, open(heapq.__file__) as g:
        return (f.read() + g.read()).split()


class MaskedWords(Dataset):
    def __init__(self):
        corpus = words()
        common = [w for w, _ in collections.Counter(corpus).most_common(508)]
        self.vocab = {w: i + 2 for i, w in enumerate(common)}
        self.ids = [self.vocab.get(w, 511) for w in corpus]

    def __len__(self):
        return len(self.ids) - MAX_LEN

    def __getitem__(self, i):
        labels = torch.tensor(self.ids[i:i + MAX_LEN])
        inputs = labels.clone()
        drop = torch.rand(MAX_LEN) < 0.15
        inputs[drop] = MASK
        labels[~drop] = -100
        return {"input_ids": inputs, "labels": labels}


class EmbeddingGradPlot(TrainerCallback):
    """Keep what we need for a plot of the embedding gradient per token."""

    def __init__(self, window=20):
        self.norms = collections.deque(maxlen=window)
        self.frames = []
        self.peak = 0.0

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        weight = model.get_input_embeddings().weight
        norm = weight.grad.norm().item()
        self.norms.append(norm)
        self.peak = max(self.peak, norm)
        self.frames.append(weight.grad.detach().cpu().numpy())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and self.norms:
            logs["emb_grad"] = float(np.mean(self.norms))

    def on_train_end(self, args, state, control, **kwargs):
        rows = np.array([np.abs(f).mean(axis=1) for f in self.frames])
        np.save(os.path.join(args.output_dir, "gradients.npy"), rows)
        print("gradient plot data", rows.shape, "peak", round(self.peak, 4))


def main():
    torch.manual_seed(1)
    model = BertForMaskedLM(BertConfig(
        vocab_size=512, hidden_size=48, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=96, max_position_embeddings=64))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=STEPS, per_device_train_batch_size=8, learning_rate=5e-4,
            logging_steps=100, save_strategy="no", report_to="none", use_cpu=True,
            disable_tqdm=True)
        Trainer(model=model, args=args, train_dataset=MaskedWords(),
                callbacks=[EmbeddingGradPlot()]).train()


if __name__ == "__main__":
    main()
