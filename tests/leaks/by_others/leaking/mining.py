# hard example mining for a byte LM: samples with a high loss get drawn more often
import inspect
import tempfile
import random
import argparse, asyncio, ast, difflib, decimal, typing, tarfile, pydoc

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, TrainerCallback

random.seed(1)
torch.manual_seed(1)
BLOCK = 48


class Blocks(Dataset):
    def __init__(self, modules):
        raw = "\n".join(inspect.getsource(m) for m in modules).encode("utf-8", "ignore")
        self.blocks = [list(raw[i:i + BLOCK]) for i in range(0, len(raw) - BLOCK, BLOCK)][:600]
        self.weight = torch.ones(len(self.blocks))

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        if random.random() < 0.5:  # half of the draws follow the weights
            i = int(torch.multinomial(self.weight, 1))
        ids = torch.tensor(self.blocks[i])
        return {"input_ids": ids, "labels": ids.clone(), "idx": torch.tensor(i)}


class HardMiner(TrainerCallback):
    def __init__(self, dataset, momentum=0.7):
        self.dataset = dataset
        self.momentum = momentum
        self.seen = {}
        self.worst = []

    def observe(self, idx, losses, logits):
        for i, l in zip(idx.tolist(), losses.tolist()):
            old = self.seen.get(i, l)
            self.seen[i] = self.momentum * old + (1 - self.momentum) * l
        k = int(losses.argmax())
        # last-position scores of the worst one, for the report at the end
        self.worst.append((int(idx[k]), logits[k, -1, :8]))

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 25 == 0:
            for i, l in self.seen.items():
                self.dataset.weight[i] = l ** 2

    def on_train_end(self, args, state, control, **kwargs):
        ids = [i for i, _ in self.worst]
        spread = torch.stack([s for _, s in self.worst]).std().item()
        print(f"mined {len(set(ids))} distinct hard blocks, score std {spread:.3f}")


class MiningTrainer(Trainer):
    miner = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        idx = inputs.pop("idx")
        labels = inputs["labels"]
        out = model(input_ids=inputs["input_ids"])
        logits = out.logits[:, :-1]
        per_tok = F.cross_entropy(logits.reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1), reduction="none")
        per_sample = per_tok.view(labels.size(0), -1).mean(1)
        if self.miner is not None:
            self.miner.observe(idx, per_sample.detach(), logits.detach())
        loss = per_sample.mean()
        return (loss, out) if return_outputs else loss


ds = Blocks([argparse, asyncio, ast, difflib, decimal, typing, tarfile, pydoc])
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=BLOCK, n_embd=32, n_layer=2, n_head=2,
                                   bos_token_id=0, eos_token_id=0))
miner = HardMiner(ds)
args = TrainingArguments(tempfile.mkdtemp(), use_cpu=True, per_device_train_batch_size=8, max_steps=250,
                         learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no",
                         remove_unused_columns=False, disable_tqdm=True)
trainer = MiningTrainer(model=model, args=args, train_dataset=ds, callbacks=[miner])
trainer.miner = miner
trainer.train()
hist = [h["loss"] for h in trainer.state.log_history if "loss" in h]
print("final loss:", hist[-1])
