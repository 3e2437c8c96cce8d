"""Audio tagging on synthetic clips; batches are assembled in 64-byte aligned staging buffers."""
import ctypes
import math
import tempfile
import time
import weakref

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

libc = ctypes.CDLL(None)
libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

RATE, SECONDS, TAGS = 2000, 1.0, 8
SAMPLES = int(RATE * SECONDS)


def aligned_empty(shape, align=64):
    nbytes = math.prod(shape) * 4
    ptr = ctypes.c_void_p()
    if libc.posix_memalign(ctypes.byref(ptr), align, nbytes):
        raise MemoryError(nbytes)
    raw = (ctypes.c_char * nbytes).from_address(ptr.value)
    return np.frombuffer(raw, dtype=np.float32).reshape(shape)


class Clips(Dataset):
    def __init__(self, n=500, seed=0):
        rng = np.random.default_rng(seed)
        t = np.arange(SAMPLES) / RATE
        self.tags = (rng.random((n, TAGS)) < 0.25).astype(np.float32)
        freqs = 60 * 1.5 ** np.arange(TAGS)
        bank = np.sin(2 * np.pi * freqs[:, None] * t)
        self.wav = (self.tags @ bank + 0.5 * rng.normal(size=(n, SAMPLES))).astype(np.float32)

    def __len__(self):
        return len(self.tags)

    def __getitem__(self, i):
        return self.wav[i], self.tags[i]


class StagingCollator:
    def __init__(self, gain=0.2, seed=0):
        self.rng = np.random.default_rng(seed)
        self.gain = gain
        self.seconds = 0.0

    def __call__(self, rows):
        t0 = time.perf_counter()
        batch = aligned_empty((len(rows), SAMPLES))
        for k, (wav, _) in enumerate(rows):
            np.multiply(wav, 1 + self.gain * self.rng.uniform(-1, 1), out=batch[k])
        batch -= batch.mean(axis=1, keepdims=True)
        self.seconds += time.perf_counter() - t0
        return {"wav": torch.from_numpy(batch), "labels": torch.from_numpy(np.stack([t for _, t in rows]))}


class Tagger(nn.Module):
    def __init__(self, bands=32):
        super().__init__()
        self.front = nn.Conv1d(1, bands, 64, stride=32)
        self.mid = nn.Conv1d(bands, 32, 5, stride=2)
        self.head = nn.Linear(32, TAGS)

    def forward(self, wav, labels=None):
        h = torch.relu(self.mid(torch.log1p(self.front(wav[:, None]).abs())))
        logits = self.head(h.mean(-1))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        return {"loss": loss, "logits": logits}


class CollateTime(TrainerCallback):
    def __init__(self, collator):
        self.collator = collator

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and state.global_step:
            logs["collate_ms"] = round(1e3 * self.collator.seconds / state.global_step, 3)


if __name__ == "__main__":
    torch.manual_seed(0)
    collator = StagingCollator()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=350, per_device_train_batch_size=8,
        learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False)
    trainer = Trainer(model=Tagger(), args=args, train_dataset=Clips(), data_collator=collator,
                      callbacks=[CollateTime(collator)])
    trainer.train()
    print("final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])
