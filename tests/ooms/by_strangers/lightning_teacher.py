"""Distillation in Lightning: a large frozen-by-intent teacher runs beside the student, and keeps a graph as well."""

import logging
import resource
import warnings
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 600
BATCH = 24
ACCUM = 1
LENGTH = 128
TEACHER_LAYERS = 10
TEACHER_WIDTH = 256
STEPS = 12

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


def encoder(width, layers):
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(1000, width), nn.TransformerEncoder(layer, layers), nn.Linear(width, 1000))


class Distiller(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.teacher = encoder(TEACHER_WIDTH, TEACHER_LAYERS)
        self.student = encoder(64, 2)

    def training_step(self, batch, batch_idx):
        (ids,) = batch
        wanted = self.teacher(ids).softmax(-1)
        scores = self.student(ids).log_softmax(-1)
        return nn.functional.kl_div(scores, wanted.detach(), reduction="batchmean")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.student.parameters(), lr=1e-3)


def main():
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randint(1000, (BATCH * ACCUM * STEPS, LENGTH)))
    model = Distiller()
    small_machine(MEMORY)
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        accumulate_grad_batches=ACCUM,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=BATCH))
    print("finished")


if __name__ == "__main__":
    main()
