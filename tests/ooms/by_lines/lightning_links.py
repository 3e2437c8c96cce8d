"""Link prediction in Lightning: at the end of each validation every pair of nodes is scored."""

import logging
import resource
import warnings
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 230
BATCH = 512
NODES = 6_000

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Links(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.nodes = nn.Embedding(NODES, 32)
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, source, target):
        return (self.net(self.nodes(source)) * self.net(self.nodes(target))).sum(-1)

    def training_step(self, batch, batch_idx):
        source, target = batch
        wrong = torch.randint(NODES, target.shape)
        return nn.functional.softplus(self(source, wrong) - self(source, target)).mean()

    def validation_step(self, batch, batch_idx):
        self.last = self(*batch).mean()

    def on_validation_epoch_end(self):
        if self.trainer.sanity_checking:
            return
        z = self.net(self.nodes.weight)
        scores = torch.sigmoid(z @ z.T)
        scores.fill_diagonal_(0)
        self.log("density", (scores > 0.5).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    edges = TensorDataset(torch.randint(NODES, (8_000,)), torch.randint(NODES, (8_000,)))
    small_machine(MEMORY)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Links(), DataLoader(edges, batch_size=BATCH, shuffle=True), DataLoader(edges, batch_size=BATCH))
    print("finished")


if __name__ == "__main__":
    main()
