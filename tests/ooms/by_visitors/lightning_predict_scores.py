"""A tagger in Lightning; after the training it tags a corpus with trainer.predict, which returns all scores."""

import logging
import resource
import warnings
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 230
BATCH = 16
PREDICT_BATCH = 128
TAGS = 1_500

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(3_000, 64)
        self.lstm = nn.GRU(64, 64, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, TAGS)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])

    def training_step(self, batch, batch_idx):
        tokens, tags = batch
        return nn.functional.cross_entropy(self(tokens).flatten(0, 1), tags.flatten())

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    tokens, tags = torch.randint(3_000, (320, 48)), torch.randint(TAGS, (320, 48))
    corpus = TensorDataset(torch.randint(3_000, (1_600, 48)))
    model = Tagger()
    small_machine(MEMORY)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(tokens, tags), batch_size=BATCH, shuffle=True))
    scores = trainer.predict(model, DataLoader(corpus, batch_size=PREDICT_BATCH))
    found = torch.cat([part if part.dim() == 2 else part.argmax(-1) for part in scores])
    print("finished", tuple(found.shape))


if __name__ == "__main__":
    main()
