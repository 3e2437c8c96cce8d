"""Reranks beams: a scorer is trained on pairs; the evaluation scores every query with all of its candidates."""

import resource
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 220
BATCH = 64
CANDIDATES = 200


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, pairs):
        return self.net(pairs).squeeze(-1)


def rank(model, queries, candidates):
    """(queries, candidates) scores."""
    model.eval()
    with torch.inference_mode():
        left = queries[:, None].expand(-1, candidates.shape[1], -1)
        pairs = torch.cat([left, candidates], dim=-1)
        scores = model(pairs)
    model.train()
    return scores.argsort(dim=1, descending=True)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    data = TensorDataset(torch.rand(3_000, 256), torch.randint(2, (3_000,)).float())
    queries, candidates = torch.rand(800, 128), torch.rand(800, CANDIDATES, 128)
    model = Scorer()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), DataLoader(data, batch_size=BATCH, shuffle=True)
    )
    small_machine(MEMORY)
    for epoch in range(2):
        for pairs, label in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(pairs), label)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        order = rank(model, queries, candidates)
        print(f"epoch {epoch}: {(order[:, 0] == 0).float().mean().item():.3f}")
    print("done")


if __name__ == "__main__":
    main()
