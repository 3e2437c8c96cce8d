"""Matrix factorisation on implicit feedback: a million users, 200k items, BPR loss."""

import resource

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
LIMIT_MIB = 750
NUM_USERS, NUM_ITEMS, DIM = 1_000_000, 200_000, 64
BATCH_SIZE, STEPS = 4096, 6


class BPR(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, DIM)
        self.items = nn.Embedding(NUM_ITEMS, DIM)
        nn.init.normal_(self.users.weight, std=0.05)
        nn.init.normal_(self.items.weight, std=0.05)

    def forward(self, user, positive, negative):
        u = self.users(user)
        return (u * self.items(positive)).sum(-1), (u * self.items(negative)).sum(-1)


def interactions():
    for _ in range(STEPS):
        user = torch.randint(NUM_USERS, (BATCH_SIZE,))
        positive = (user * 7) % NUM_ITEMS
        negative = torch.randint(NUM_ITEMS, (BATCH_SIZE,))
        yield user, positive, negative


def vm_data():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))


model = BPR()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
limit = vm_data() + LIMIT_MIB * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

for step, (user, positive, negative) in enumerate(interactions()):
    good, bad = model(user, positive, negative)
    loss = -F.logsigmoid(good - bad).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print("done")
