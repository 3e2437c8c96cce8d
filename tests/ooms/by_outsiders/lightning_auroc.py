"""Tags of songs: the area under the curve of each tag, exact, over the whole validation."""

import resource
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MultilabelAUROC

MEMORY = 350
TAGS = 500
BATCH = 32
ACCUM = 1
VAL_BATCH = 100
VAL_ROWS = 40_000
THRESHOLDS = None


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Songs(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitems__(self, places):
        tags = (torch.rand(len(places), TAGS) < 0.05).long()
        return torch.randn(len(places), 64), tags


def as_it_is(batch):
    return batch


class Tagger(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, TAGS))
        self.auroc = MultilabelAUROC(num_labels=TAGS, thresholds=THRESHOLDS)

    def training_step(self, batch, batch_idx):
        songs, tags = batch
        return nn.functional.binary_cross_entropy_with_logits(self.net(songs), tags.float())

    def validation_step(self, batch, batch_idx):
        songs, tags = batch
        self.auroc.update(self.net(songs).sigmoid(), tags)
        self.log("val_auroc", self.auroc, on_epoch=True, batch_size=len(songs))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def main():
    lightning.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    train = DataLoader(Songs(32 * 40), batch_size=BATCH, collate_fn=as_it_is)
    validate = DataLoader(Songs(VAL_ROWS), batch_size=VAL_BATCH, collate_fn=as_it_is)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        accumulate_grad_batches=ACCUM,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    small_machine(MEMORY)
    trainer.fit(Tagger(), train, validate)
    print("done")


if __name__ == "__main__":
    main()
