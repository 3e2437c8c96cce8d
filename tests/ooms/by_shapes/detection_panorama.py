"""Object detection, two pictures a batch as a list, each of its own size; one of them is a panorama."""

import resource
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEMORY = 220
BATCH = 2
ACCUM = 1
MOST_WIDTH = 4_096


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Pictures(Dataset):
    """Pictures (3, height, width) with boxes; at most MOST_WIDTH wide."""

    def __init__(self, num):
        self.sizes = [(96 + 16 * (index % 4), 128 + 16 * (index % 5)) for index in range(num)]
        self.sizes[num * 2 // 3] = (160, 1_600)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        height, width = self.sizes[index]
        picture = torch.rand(3, height, min(width, MOST_WIDTH))
        return picture, {"boxes": torch.rand(1 + index % 7, 4)}


def collate(samples):
    return tuple(zip(*samples, strict=True))


class Detector(nn.Module):
    """Pads the pictures of a batch to one size, as those of torchvision do."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(32, 5, 1)

    def forward(self, pictures, targets):
        height, width = (max(picture.shape[side] for picture in pictures) for side in (1, 2))
        batch = torch.stack(
            [
                nn.functional.pad(picture, (0, width - picture.shape[2], 0, height - picture.shape[1]))
                for picture in pictures
            ]
        )
        found = self.head(self.backbone(batch)).flatten(2).mean(2)
        wanted = torch.stack([target["boxes"].mean(0) for target in targets])
        return (found[:, :4] - wanted).square().mean() + found[:, 4].sigmoid().mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Pictures(48), batch_size=BATCH, collate_fn=collate)
    small_machine(MEMORY)
    for step, (pictures, targets) in enumerate(loader, 1):
        loss = model(pictures, targets) / ACCUM
        loss.backward()
        if step % ACCUM == 0:
            optimizer.step()
            optimizer.zero_grad()
    print("done", loss.item())


if __name__ == "__main__":
    main()
