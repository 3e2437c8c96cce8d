"""Two towers trained with Accelerate; after each epoch the rank of each question's answer among all answers."""

import resource
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 260
BATCH = 64
EVAL_BATCH = 128
PAIRS = 5_000
EPOCHS = 2


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.question = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.answer = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, questions, answers):
        normalize = nn.functional.normalize
        return normalize(self.question(questions), dim=1), normalize(self.answer(answers), dim=1)


@torch.no_grad()
def evaluate(accelerator, model, loader):
    """Mean reciprocal rank."""
    model.eval()
    all_q, all_a = [], []
    for questions, answers in loader:
        q, a = accelerator.gather_for_metrics(model(questions, answers))
        all_q.append(q)
        all_a.append(a)
    q, a = torch.cat(all_q), torch.cat(all_a)
    order = (q @ a.T).argsort(dim=1, descending=True)
    rank = (order == torch.arange(len(q))[:, None]).nonzero()[:, 1] + 1
    model.train()
    return (1 / rank).mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = Towers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.rand(PAIRS, 64), torch.rand(PAIRS, 64))
    model, optimizer, loader, eval_loader = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=BATCH, shuffle=True), DataLoader(data, batch_size=EVAL_BATCH)
    )
    small_machine(MEMORY)
    for epoch in range(EPOCHS):
        for questions, answers in loader:
            q, a = model(questions, answers)
            loss = nn.functional.cross_entropy(q @ a.T / 0.05, torch.arange(len(q)))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: MRR {evaluate(accelerator, model, eval_loader):.3f}")
    print("done")


if __name__ == "__main__":
    main()
