"""Segmentation of scans, one at a time; scans have different numbers of slices, one of them has very many."""

import resource
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEMORY = 160
BATCH = 1
DEPTH = 512
EPOCHS = 1


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Scans(Dataset):
    """Pairs of a volume (1, slices, 48, 48) and its mask; at most DEPTH slices."""

    def __init__(self, num):
        self.slices = [4 + 2 * (index % 3) for index in range(num)]
        self.slices[num // 2] = 144

    def __len__(self):
        return len(self.slices)

    def __getitem__(self, index):
        volume = torch.rand(1, self.slices[index], 48, 48)[:, :DEPTH]
        return volume, (volume > 0.5).float()


def block(inside, outside):
    return nn.Sequential(
        nn.Conv3d(inside, outside, 3, padding=1), nn.InstanceNorm3d(outside), nn.LeakyReLU(0.01, inplace=True)
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = block(1, 8)
        self.bottom = nn.Sequential(nn.MaxPool3d(2), block(8, 16), nn.Upsample(scale_factor=2))
        self.up = block(24, 8)
        self.last = nn.Conv3d(8, 1, 1)

    def forward(self, x):
        fine = self.down(x)
        coarse = self.bottom(fine)
        return self.last(self.up(torch.cat([fine, coarse], dim=1)))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Scans(14), batch_size=BATCH)
    criterion = nn.BCEWithLogitsLoss()
    small_machine(MEMORY)
    for _ in range(EPOCHS):
        for volume, mask in loader:
            optimizer.zero_grad()
            loss = criterion(model(volume), mask)
            loss.backward()
            optimizer.step()
    print("done", loss.item())


if __name__ == "__main__":
    main()
