"""Person re-identification: batch-hard triplet loss (Hermans et al.) on P x K batches."""

import resource

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
LIMIT_MIB = 500
PEOPLE, IMAGES_EACH, DIM = 192, 4, 128
STEPS = 6


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, DIM),
        )

    def forward(self, images):
        return F.normalize(self.body(images), dim=-1)


def batch_hard_triplet(embeddings, labels, margin=0.3):
    difference = embeddings.unsqueeze(1) - embeddings.unsqueeze(0)
    distance = difference.pow(2).sum(-1).clamp_min(1e-12).sqrt()
    same = labels.unsqueeze(1) == labels.unsqueeze(0)
    hardest_positive = distance.masked_fill(~same, 0.0).max(1).values
    hardest_negative = distance.masked_fill(same, float("inf")).min(1).values
    return F.relu(hardest_positive - hardest_negative + margin).mean()


def sample_batch():
    identity = torch.randn(PEOPLE, 1, 3, 32, 16)
    images = identity + 0.3 * torch.randn(PEOPLE, IMAGES_EACH, 3, 32, 16)
    return images.flatten(0, 1), torch.arange(PEOPLE).repeat_interleave(IMAGES_EACH)


def vm_data():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))


model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
limit = vm_data() + LIMIT_MIB * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

for step in range(STEPS):
    images, labels = sample_batch()
    embeddings = model(images)
    loss = batch_hard_triplet(embeddings, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print("done")
