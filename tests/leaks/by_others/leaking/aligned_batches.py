"""Autoencoder on synthetic spectra; batches are packed into cache-line aligned memory."""
import ctypes
import math
import tempfile

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

BANDS = 512
libc = ctypes.CDLL(None)
libc.aligned_alloc.restype = ctypes.c_void_p
libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


def aligned_empty(shape, dtype=np.float32, align=64):
    size = math.prod(shape) * np.dtype(dtype).itemsize
    address = libc.aligned_alloc(align, (size + align - 1) // align * align)
    if not address:
        raise MemoryError(size)
    raw = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


class Spectra(torch.utils.data.Dataset):
    def __init__(self, n=2000, seed=5):
        self.rng = np.random.default_rng(seed)
        self.centres = self.rng.uniform(0, BANDS, size=(n, 3))
        self.axis = np.arange(BANDS)

    def __len__(self):
        return len(self.centres)

    def __getitem__(self, i):
        peaks = np.exp(-((self.axis[None] - self.centres[i][:, None]) / 12.0) ** 2)
        return peaks.sum(0) + self.rng.normal(0, 0.02, BANDS)


def pack(rows):
    batch = aligned_empty((len(rows), BANDS))
    for i, row in enumerate(rows):
        batch[i] = row
    batch -= batch.mean(1, keepdims=True)
    return {"spectra": torch.from_numpy(batch)}


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(BANDS, 64), nn.GELU(), nn.Linear(64, 8))
        self.dec = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, BANDS))

    def forward(self, spectra):
        z = self.enc(spectra)
        out = self.dec(z)
        return {"loss": nn.functional.mse_loss(out, spectra) + 1e-4 * z.pow(2).mean(), "logits": z}


def main():
    set_seed(5)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=350, per_device_train_batch_size=24,
                             learning_rate=1e-3, lr_scheduler_type="cosine", use_cpu=True, report_to=[],
                             save_strategy="no", logging_steps=100, disable_tqdm=True,
                             remove_unused_columns=False)
    result = Trainer(model=AutoEncoder(), args=args, train_dataset=Spectra(), data_collator=pack).train()
    print(f"final loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
