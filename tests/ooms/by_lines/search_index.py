"""A two-tower recommender; after each epoch all items are embedded for the search index."""

import resource
from pathlib import Path

import torch
from torch import nn

MEMORY = 220
BATCH = 128
EPOCHS = 2


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(5_000, 64)
        self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, bags):
        return nn.functional.normalize(self.net(self.embed(bags)), dim=-1)


def build_index(tower, items):
    vectors = [tower(part) for part in items.split(2_000)]
    return torch.cat(vectors)


def recall(users, items, clicked, index):
    scores = users @ index.T
    return (scores.topk(10, dim=1).indices == clicked[:, None]).any(1).float().mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    user_tower, item_tower = Tower(), Tower()
    optimizer = torch.optim.Adam([*user_tower.parameters(), *item_tower.parameters()], lr=1e-3)
    users, items = torch.randint(5_000, (2_000, 12)), torch.randint(5_000, (60_000, 12))
    clicked = torch.randint(60_000, (2_000,))
    small_machine(MEMORY)
    for epoch in range(EPOCHS):
        for number in torch.randperm(2_000).split(BATCH):
            u, i = user_tower(users[number]), item_tower(items[clicked[number]])
            loss = nn.functional.cross_entropy(u @ i.T / 0.1, torch.arange(len(u)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        index = build_index(item_tower, items)
        sample = torch.randperm(2_000)[:100]
        with torch.no_grad():
            print(f"epoch {epoch}: {recall(user_tower(users[sample]), items, clicked[sample], index):.3f}")
    print("done")


if __name__ == "__main__":
    main()
