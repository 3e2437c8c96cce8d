"""Two-tower recommender on implicit feedback: user and item embeddings, in-batch softmax."""
import re
import resource

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
USERS, ITEMS, DIM = 300_000, 100_000, 64


class Tower(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.embedding = nn.Embedding(rows, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, DIM))

    def forward(self, ids):
        return nn.functional.normalize(self.mlp(self.embedding(ids)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = Tower(USERS)
        self.item = Tower(ITEMS)

    def forward(self, user, item):
        scores = self.user(user) @ self.item(item).T / 0.07
        return nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def limit_memory(mib):
    used = int(re.search(r"VmData:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20,) * 2)


clicks = TensorDataset(torch.randint(USERS, (40_000,)), torch.randint(ITEMS, (40_000,)))
loader = DataLoader(clicks, batch_size=1024, shuffle=True, drop_last=True)
model = TwoTower()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
limit_memory(290)

for step, (user, item) in enumerate(loader):
    optimizer.zero_grad()
    loss = model(user, item)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
print("done")
