"""GPT-2 style char LM with Trainer; logs how much the hidden states drift.

Posted because: "memory usage keeps increasing during training, CPU only".
"""
import argparse
import collections
import inspect
import json
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from probes.registry import ActivationRegistry

BLOCK = 48
BATCH = 8
STEPS = 320
HIDDEN = 64


class CharDataset(Dataset):
    def __init__(self, text, block):
        self.ids = torch.tensor([min(ord(c), 127) for c in text])
        self.block = block
        self.seen = collections.deque(maxlen=256)

    def __len__(self):
        return len(self.ids) - self.block - 1

    def __getitem__(self, i):
        self.seen.append(i)
        chunk = self.ids[i:i + self.block].clone()
        return {"input_ids": chunk, "labels": chunk}


class DriftCallback(TrainerCallback):
    """Mean cosine distance of the last hidden state to the one 1 step ago."""

    def __init__(self):
        self.previous = None
        self.drift = []

    def on_step_end(self, args, state, control, **kwargs):
        current = ActivationRegistry.latest("hidden")
        if self.previous is not None:
            cos = torch.cosine_similarity(current.mean((0, 1)), self.previous, dim=0)
            self.drift.append(1.0 - cos.item())
        self.previous = current.mean((0, 1))


class DriftTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs, output_hidden_states=True)
        hidden = outputs.hidden_states[-1]
        ActivationRegistry.record(self.state.global_step, "hidden", hidden)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def main():
    torch.manual_seed(0)
    text = "".join(inspect.getsource(m) for m in (argparse, inspect, collections, json))
    config = GPT2Config(vocab_size=128, n_positions=BLOCK, n_embd=HIDDEN, n_layer=2, n_head=2,
                        bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    drift = DriftCallback()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, per_device_train_batch_size=BATCH, max_steps=STEPS,
            learning_rate=1e-3, logging_steps=80, save_strategy="no", report_to="none",
            use_cpu=True, disable_tqdm=True,
        )
        trainer = DriftTrainer(model=model, args=args, train_dataset=CharDataset(text, BLOCK),
                               callbacks=[drift])
        trainer.train()
    print("mean drift of the last 50 steps", sum(drift.drift[-50:]) / 50)


if __name__ == "__main__":
    main()
