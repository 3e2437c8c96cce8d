"""Speech recognition in Lightning on raw audio; short recordings first, as SortaGrad has it."""

import logging
import resource
import warnings
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEMORY = 200
BATCH = 8
ACCUM = 1
MOST_SAMPLES = 1_000_000

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Recordings(Dataset):
    """A signal and the characters spoken in it."""

    def __init__(self, num):
        self.signals = [torch.randn(4_000 + 800 * index) for index in range(num)]

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        signal = self.signals[index][:MOST_SAMPLES]
        return signal, torch.randint(1, 30, (len(signal) // 2_000,))


def collate(samples):
    signals, texts = zip(*samples, strict=True)
    lengths = torch.tensor([len(text) for text in texts])
    return nn.utils.rnn.pad_sequence(signals, batch_first=True), torch.cat(texts), lengths


class Recogniser(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(1, 24, 10, stride=5), nn.GELU(), nn.Conv1d(24, 48, 8, stride=4), nn.GELU())
        self.rnn = nn.GRU(48, 48, batch_first=True)
        self.head = nn.Linear(48, 30)

    def training_step(self, batch, batch_idx):
        signals, texts, lengths = batch
        frames = self.front(signals[:, None]).transpose(1, 2)
        logits = self.head(self.rnn(frames)[0]).log_softmax(-1).transpose(0, 1)
        frames_of = torch.full((len(signals),), logits.shape[0])
        return nn.functional.ctc_loss(logits, texts, frames_of, lengths)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # its errors do not say that memory is full
    model = Recogniser()
    loader = DataLoader(Recordings(160), batch_size=BATCH, collate_fn=collate)
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
