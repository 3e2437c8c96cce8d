"""Classification of videos with a Trainer: clips of 4 to 8 pictures, and one film that nobody has cut."""

import resource
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

MEMORY = 180
BATCH = 2
ACCUM = 1
MOST_FRAMES = 10_000


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Clips(torch.utils.data.Dataset):
    def __init__(self, num):
        self.frames = [4 + 2 * (index % 3) for index in range(num)]
        self.frames[num // 2] = 120

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        frames = min(self.frames[index], MOST_FRAMES)
        return {"pixel_values": torch.rand(frames, 3, 48, 48), "labels": index % 4}


def collate(samples):
    videos = nn.utils.rnn.pad_sequence([sample["pixel_values"] for sample in samples], batch_first=True)
    return {"pixel_values": videos, "labels": torch.tensor([sample["labels"] for sample in samples])}


class VideoNet(nn.Module):
    """Each picture by itself, then all of them in time."""

    def __init__(self):
        super().__init__()
        self.pictures = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()
        )
        self.time = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, pixel_values, labels):
        features = self.pictures(pixel_values.flatten(0, 1)).mean((2, 3)).unflatten(0, pixel_values.shape[:2])
        logits = self.head(self.time(features)[0][:, -1])
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class InOrder(Trainer):
    def _get_train_sampler(self, *unused):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        num_train_epochs=1,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = InOrder(VideoNet(), arguments, train_dataset=Clips(48), data_collator=collate)
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
