"""A plain loop that sends its checkpoint to a service as text: the whole file is made in memory first."""

import base64
import hashlib
import io
import resource
from pathlib import Path

import torch
from torch import nn

MEMORY = 340
BATCH = 16
WORDS = 20_000
WIDTH = 512
STEPS = 30
SAVE_EVERY = 10


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


class Store:
    """Stands for a service: keeps nothing but a digest of what it was sent."""

    def __init__(self):
        self.sent = {}

    def put(self, key, body):
        self.sent[key] = hashlib.sha256(body).hexdigest()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, WIDTH)
        self.out = nn.Linear(WIDTH, 20)

    def forward(self, ids):
        return self.out(torch.relu(self.words(ids)))


def upload(store, model, optimizer, step):
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, buffer)
    store.put(f"step-{step}.pt", base64.b64encode(buffer.getvalue()))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    store = Store()
    small_machine(MEMORY)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, STEPS + 1):
        ids, labels = torch.randint(WORDS, (BATCH, 30)), torch.randint(20, (BATCH,))
        loss = nn.functional.cross_entropy(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            upload(store, model, optimizer, step)
    print("finished", round(loss.item(), 3), len(store.sent))


if __name__ == "__main__":
    main()
