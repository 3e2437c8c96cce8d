"""The backbone is frozen for two epochs and trained then (BackboneFinetuning)."""

import resource
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 335
WIDTH = 2_560
LAYERS = 4
BATCH = 16
ACCUM = 1
UNFREEZE_AT = 2
OPTIMIZER = "adam"


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def make_optimizer(parameters):
    if OPTIMIZER == "adam":
        return torch.optim.Adam(parameters, lr=1e-4, foreach=False)
    if OPTIMIZER == "adafactor":
        return torch.optim.Adafactor(parameters, lr=1e-4, foreach=False)
    return torch.optim.SGD(parameters, lr=1e-3, foreach=False)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, rows):
        return self.head(self.backbone(rows))

    def training_step(self, batch, batch_idx):
        rows, labels = batch
        return nn.functional.cross_entropy(self(rows), labels)

    def configure_optimizers(self):
        return make_optimizer([weight for weight in self.parameters() if weight.requires_grad])


def main():
    lightning.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    small_machine(MEMORY)
    model = Classifier()
    data = TensorDataset(torch.randn(192, WIDTH), torch.randint(4, (192,)))
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        accumulate_grad_batches=ACCUM,
        callbacks=[BackboneFinetuning(unfreeze_backbone_at_epoch=UNFREEZE_AT, verbose=False)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=BATCH))
    print("done")


if __name__ == "__main__":
    main()
