"""Next-frame prediction on episodes from a simulated plant that runs in its own thread."""
import queue
import tempfile
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

HORIZON = 40
OBS = 48


class Plant:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        a = self.rng.normal(size=(OBS, OBS)).astype(np.float32)
        self.a = a / np.abs(np.linalg.eigvals(a)).max()

    def rollout(self):
        x = self.rng.normal(size=OBS).astype(np.float32)
        ep = np.empty((HORIZON, OBS), np.float32)
        for t in range(HORIZON):
            ep[t] = x
            x = np.tanh(self.a @ x + 0.05 * self.rng.normal(size=OBS).astype(np.float32))
        time.sleep(0.0005)  # sensor latency
        return ep


class Episodes(IterableDataset):
    def __init__(self, seed=0):
        self.plant = Plant(seed)
        self.pending = queue.Queue()
        self.stop = threading.Event()
        self.produced = 0
        self.worker = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.stop.is_set():
            ep = self.plant.rollout()
            self.produced += 1
            try:
                self.pending.put(ep, timeout=5)
            except queue.Full:
                continue

    def __iter__(self):
        if not self.worker.is_alive():
            self.worker.start()
        while True:
            ep = torch.from_numpy(self.pending.get())
            yield {"obs": ep[:-1], "labels": ep[1:]}


class Dynamics(nn.Module):
    def __init__(self, hidden=96, layers=3):
        super().__init__()
        self.inp = nn.Linear(OBS, hidden)
        enc = nn.TransformerEncoderLayer(hidden, 4, 2 * hidden, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(enc, layers, enable_nested_tensor=False)
        self.out = nn.Linear(hidden, OBS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(HORIZON - 1))

    def forward(self, obs, labels=None):
        pred = self.out(self.body(self.inp(obs), mask=self.mask))
        return {"loss": nn.functional.smooth_l1_loss(pred, labels), "pred": pred}


class Throughput(TrainerCallback):
    def __init__(self, source):
        self.source = source
        self.rate = 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self.t0 = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        dt = time.perf_counter() - self.t0
        self.rate = 0.9 * self.rate + 0.1 * args.per_device_train_batch_size / dt

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None:
            logs["eps_per_s"] = round(self.rate, 1)

    def on_train_end(self, args, state, control, **kwargs):
        self.source.stop.set()


if __name__ == "__main__":
    torch.manual_seed(0)
    source = Episodes()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=400, per_device_train_batch_size=8,
        learning_rate=1e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False)
    trainer = Trainer(model=Dynamics(), args=args, train_dataset=source, callbacks=[Throughput(source)])
    trainer.train()
    print("episodes", source.produced, "final loss",
          [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])
