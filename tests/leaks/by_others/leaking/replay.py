"""Continual LM over a sequence of domains with a replay buffer."""
import collections
import inspect
import random
import tempfile
import argparse, email.message, http.client, json.encoder, sqlite3.dump, unittest.case, xml.dom.minidom

import numpy as np
import torch
from torch.utils.data import IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

SEQ = 48
DOMAINS = [argparse, email.message, http.client, unittest.case, xml.dom.minidom]


class ReplayBuffer:
    by_bucket = collections.defaultdict(list)

    def __init__(self, capacity=40, buckets=8):
        self.capacity = capacity
        self.buckets = buckets

    def bucket(self, ids):
        return int(ids.sum()) % self.buckets

    def add(self, ids, logits):
        if len(self.by_bucket) >= self.capacity:
            victim = max(self.by_bucket, key=lambda b: len(self.by_bucket[b]))
            self.by_bucket[victim].pop(0)
        self.by_bucket[self.bucket(ids)].append((ids, logits))

    def sample(self, n):
        full = [b for b in self.by_bucket if self.by_bucket[b]]
        return [random.choice(self.by_bucket[random.choice(full)]) for _ in range(n)] if full else []


class DomainStream(IterableDataset):
    def __init__(self, steps, batch):
        self.texts = [np.frombuffer(inspect.getsource(m).encode(), dtype=np.uint8) for m in DOMAINS]
        self.total = steps * batch

    def __iter__(self):
        rng = np.random.default_rng(0)
        for k in range(self.total):
            text = self.texts[min(len(self.texts) - 1, k * len(self.texts) // self.total)]
            s = int(rng.integers(0, len(text) - SEQ))
            yield {"input_ids": torch.from_numpy(text[s:s + SEQ].astype(np.int64))}


class ReplayTrainer(Trainer):
    buffer = ReplayBuffer()
    replay_weight = 0.3

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids = inputs["input_ids"]
        out = model(input_ids=ids, labels=ids)
        loss = out.loss
        old = self.buffer.sample(4)
        if old:
            old_ids = torch.from_numpy(np.stack([o[0] for o in old]))
            old_top = torch.from_numpy(np.stack([o[1] for o in old]).astype(np.float32))
            replay = model(input_ids=old_ids, labels=old_ids)
            drift = (replay.logits[:, -24:, :96] - old_top).pow(2).mean()
            loss = loss + self.replay_weight * (replay.loss + 0.1 * drift)
        for row, lg in zip(ids.numpy(), out.logits.detach().numpy()):
            self.buffer.add(row.copy(), lg[-24:, :96].astype(np.float16))
        return (loss, out) if return_outputs else loss


class DomainLoss(TrainerCallback):
    def __init__(self):
        self.per_domain = collections.OrderedDict()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            d = min(len(DOMAINS) - 1, state.global_step * len(DOMAINS) // (args.max_steps + 1))
            self.per_domain[DOMAINS[d].__name__] = logs["loss"]


def main():
    torch.manual_seed(0)
    random.seed(0)
    steps, bs = 400, 8
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=SEQ, n_embd=32, n_layer=2, n_head=4,
                                       bos_token_id=0, eos_token_id=0))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=steps, per_device_train_batch_size=bs,
        learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = ReplayTrainer(model=model, args=args, train_dataset=DomainStream(steps + 5, bs),
                            callbacks=[DomainLoss()])
    trainer.train()
    print("final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
