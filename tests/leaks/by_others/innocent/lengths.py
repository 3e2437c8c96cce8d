"""Sequence length curriculum: from 16 to 192 bytes over the first 150 steps."""
import glob
import os
import tempfile
import time

import torch
from torch.utils.data import IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

MAX_LEN, MIN_LEN, RAMP = 192, 16, 150


class RampWindows(IterableDataset):
    def __init__(self, blob, seed=0):
        self.data = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        self.gen = torch.Generator().manual_seed(seed)
        self.length = MIN_LEN

    def __iter__(self):
        while True:
            # all the rows of a batch have the same length
            n = self.length
            s = int(torch.randint(0, len(self.data) - MAX_LEN, (1,), generator=self.gen))
            ids = self.data[s:s + n].long()
            yield {"input_ids": ids, "labels": ids}


class CropCollator:
    def __call__(self, rows):
        n = min(len(r["input_ids"]) for r in rows)
        ids = torch.stack([r["input_ids"][:n] for r in rows])
        return {"input_ids": ids, "labels": ids.clone()}


class LengthSchedule(TrainerCallback):
    def __init__(self, data):
        self.data = data
        self.ms_per_token = []

    def on_step_begin(self, args, state, control, **kwargs):
        frac = min(1.0, state.global_step / RAMP)
        self.data.length = int(MIN_LEN + frac * (MAX_LEN - MIN_LEN))
        self.t0 = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        dt = time.perf_counter() - self.t0
        self.ms_per_token.append(1e3 * dt / (self.data.length * args.per_device_train_batch_size))


class LossByPosition(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pos_loss = torch.zeros(0)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        with torch.no_grad():
            lg, tg = out.logits[:, :-1], inputs["input_ids"][:, 1:]
            each = torch.nn.functional.cross_entropy(lg.transpose(1, 2), tg, reduction="none").mean(0)
        if len(each) > len(self.pos_loss):
            self.pos_loss = torch.cat([self.pos_loss, each[len(self.pos_loss):]])
        self.pos_loss[:len(each)].mul_(0.95).add_(0.05 * each)
        return (out.loss, out) if return_outputs else out.loss


def main():
    set_seed(6)
    blob = b"".join(open(p, "rb").read()
                    for p in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "[s-z]*.py")))[:30])
    data = RampWindows(blob)
    sched = LengthSchedule(data)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=MAX_LEN, use_cache=False))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=360, per_device_train_batch_size=6,
        learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = LossByPosition(model=model, args=args, train_dataset=data, data_collator=CropCollator(),
                             callbacks=[sched])
    trainer.train()
    early, late = trainer.pos_loss[:32].mean(), trainer.pos_loss[-32:].mean()
    print(f"early {early:.2f} late {late:.2f}", "final loss",
          [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
