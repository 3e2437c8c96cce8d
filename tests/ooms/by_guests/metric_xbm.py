"""Product retrieval by metric learning: contrastive loss against a cross-batch memory of past embeddings."""
import re
import resource

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
CLASSES, BATCH, DIM, BANK, STEPS = 200, 64, 128, 3072, 56


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(128, DIM)

    def forward(self, images):
        return nn.functional.normalize(self.head(self.body(images)), dim=-1)


class CrossBatchMemory:
    def __init__(self, size):
        self.size = size
        self.features = torch.empty(0, DIM)
        self.labels = torch.empty(0, dtype=torch.long)

    def add(self, features, labels):
        self.features = torch.cat([self.features, features.detach()])[-self.size:]
        self.labels = torch.cat([self.labels, labels])[-self.size:]


def distances(a, b):
    return (a.unsqueeze(1) - b.unsqueeze(0)).pow(2).sum(-1)


def contrastive(features, labels, bank_features, bank_labels, margin=0.5):
    distance = distances(features, bank_features)
    same = labels[:, None] == bank_labels[None, :]
    positive = distance[same].mean()
    negative = (margin - distance[~same]).clamp(min=0).mean()
    return positive + negative


prototypes = torch.randn(CLASSES, 3, 32, 32)
model = Embedder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
memory = CrossBatchMemory(BANK)
used = int(re.search(r"VmData:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 260 * 2**20,) * 2)

for step in range(STEPS):
    labels = torch.randint(CLASSES, (BATCH,))
    images = prototypes[labels] + 0.3 * torch.randn(BATCH, 3, 32, 32)
    features = model(images)
    memory.add(features, labels)
    loss = contrastive(features, labels, memory.features, memory.labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} bank {len(memory.labels)} loss {loss.item():.3f}", flush=True)
print("done")
