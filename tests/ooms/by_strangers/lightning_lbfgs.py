"""Lightning with L-BFGS: each of its steps keeps two more vectors as long as all weights together."""

import logging
import resource
import warnings
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 700
BATCH = 256
WIDTH = 1500
HISTORY = 100
OPTIMIZER = "lbfgs"
EPOCHS = 15

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


class Field(L.LightningModule):
    """A network that solves an equation: it has to bend to given values at given places."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
        )

    def training_step(self, batch, batch_idx):
        places, values = batch
        return (self.net(places) - values).square().mean()

    def configure_optimizers(self):
        if OPTIMIZER == "lbfgs":
            return torch.optim.LBFGS(self.parameters(), lr=0.2, max_iter=4, history_size=HISTORY)
        return (
            torch.optim.Adam(self.parameters(), lr=1e-3)
            if OPTIMIZER == "adam"
            else torch.optim.SGD(self.parameters(), lr=0.1)
        )


def main():
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    places = torch.rand(BATCH * 2, 2)
    data = TensorDataset(places, torch.sin(9 * places[:, :1]) * torch.cos(7 * places[:, 1:]))
    model = Field()
    small_machine(MEMORY)
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=BATCH))
    print("finished")


if __name__ == "__main__":
    main()
