"""Lightning with stochastic weight averaging, whose callback copies the whole module before the training."""

import logging
import resource
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 330
BATCH = 16
ITEMS = 180_000
WIDTH = 256
EPOCHS = 3
AVERAGE = True

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


class Recommender(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH, sparse=True)
        self.score = nn.Linear(WIDTH, 1)

    def training_step(self, batch, batch_idx):
        ids, clicked = batch
        return nn.functional.binary_cross_entropy_with_logits(self.score(self.items(ids)).mean(1).squeeze(-1), clicked)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randint(ITEMS, (320, 10)), torch.randint(2, (320,)).float())
    small_machine(MEMORY)
    model = Recommender()
    callbacks = [StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=1)] if AVERAGE else []
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=BATCH, shuffle=True))
    print("finished")


if __name__ == "__main__":
    main()
