"""Point clouds with a graph of nearest neighbours; a batch is padded to its largest cloud, one is a whole street."""

import resource
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEMORY = 250
BATCH = 4
ACCUM = 1
MOST_POINTS = 100_000
NEIGHBOURS = 8


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Clouds(Dataset):
    """Points (num, 3) and a label; at most MOST_POINTS."""

    def __init__(self, num):
        torch.manual_seed(1)
        self.sizes = torch.randint(200, 500, (num,)).tolist()
        self.sizes[num // 2] = 4_000

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        points = torch.randn(self.sizes[index], 3)
        return points[torch.randperm(len(points))[:MOST_POINTS]], index % 5


def pad(samples):
    points, labels = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(points, batch_first=True), torch.tensor(labels)


class EdgeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32))
        self.head = nn.Linear(32, 5)

    def forward(self, points):
        near = torch.cdist(points, points).topk(NEIGHBOURS, largest=False).indices
        rows = torch.arange(len(points))[:, None, None]
        others = points[rows, near]
        here = points[:, :, None].expand_as(others)
        edges = self.edge(torch.cat([here, others - here], dim=-1))
        return self.head(edges.amax(dim=2).amax(dim=1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = EdgeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Clouds(96), batch_size=BATCH, collate_fn=pad)
    small_machine(MEMORY)
    for step, (points, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(points), labels) / ACCUM
        loss.backward()
        if step % ACCUM == 0:
            optimizer.step()
            optimizer.zero_grad()
    print("done", loss.item())


if __name__ == "__main__":
    main()
