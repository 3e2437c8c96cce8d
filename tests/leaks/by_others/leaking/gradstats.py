"""LM training with per-parameter gradient statistics (norm, log-scale histogram), printed at the end."""
import json
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


def read_corpus(max_bytes=300_000):
    out = bytearray()
    for p in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        out += p.read_bytes()
        if len(out) > max_bytes:
            break
    return bytes(out[:max_bytes])


class Chunks(Dataset):
    def __init__(self, raw, size):
        self.arr = np.frombuffer(raw, dtype=np.uint8)
        self.size = size

    def __len__(self):
        return len(self.arr) // self.size

    def __getitem__(self, i):
        return self.arr[i * self.size:(i + 1) * self.size]


def collate(rows):
    ids = torch.from_numpy(np.stack(rows).astype(np.int64))
    return {"input_ids": ids, "labels": ids}


class GradStats(TrainerCallback):
    EDGES = torch.linspace(-12, 0, 65)

    def __init__(self, every=25):
        self.every = every
        self.current = {}
        self.summary = {}

    def _watch(self, name, p):
        counts = np.zeros(64)

        def on_grad(g):
            n = float(g.norm())
            counts[min(63, max(0, int((np.log10(n + 1e-12) + 12) / 12 * 64)))] += 1
            self.current[name] = n, counts

        p.register_hook(on_grad)

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        for name, p in model.named_parameters():
            self._watch(name, p)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.every:
            return
        norms = {n: v[0] for n, v in self.current.items()}
        top = max(norms, key=norms.get)
        self.summary[state.global_step] = {"top": top, "norm": round(norms[top], 4)}


class WarmupClip(TrainerCallback):
    """Loosen the clipping once the first steps are over."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 50:
            args.max_grad_norm = 5.0


def main():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, use_cache=False))
    stats = GradStats()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=220, per_device_train_batch_size=8,
        learning_rate=1e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = Trainer(model=model, args=args, train_dataset=Chunks(read_corpus(), 48), data_collator=collate,
                      callbacks=[stats, WarmupClip()])
    trainer.train()
    Path(args.output_dir).mkdir(exist_ok=True)
    Path(args.output_dir, "grad.json").write_text(json.dumps(stats.summary))
    losses = [h["loss"] for h in trainer.state.log_history if "loss" in h]
    print("final loss", losses[-1], file=sys.stdout)


if __name__ == "__main__":
    main()
