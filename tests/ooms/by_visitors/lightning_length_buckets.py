"""A language model in Lightning; batches of texts of like length, the short ones first, as a curriculum."""

import logging
import resource
import warnings
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEMORY = 150
BATCH = 32
ACCUM = 1
LENGTH = 1_024
VOCAB = 4_000

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Texts(Dataset):
    """Sorted by length; cut after LENGTH tokens."""

    def __init__(self):
        self.texts = [torch.randint(VOCAB, (8 * 2 ** (row // 128),)) for row in range(640)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index][:LENGTH]


def pad(texts):
    return nn.utils.rnn.pad_sequence(texts, batch_first=True)


class LanguageModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64)
        self.lstm = nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Linear(64, VOCAB)

    def training_step(self, batch, batch_idx):
        logits = self.head(self.lstm(self.embed(batch[:, :-1]))[0])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    model = LanguageModel()
    loader = DataLoader(Texts(), batch_size=BATCH, collate_fn=pad)
    small_machine(MEMORY)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        accumulate_grad_batches=ACCUM,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    print("finished")


if __name__ == "__main__":
    main()
