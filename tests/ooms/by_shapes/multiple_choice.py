"""Multiple choice: four answers to a question, but sixty where somebody has listed all the towns of a country."""

import resource
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEMORY = 200
BATCH = 4
ACCUM = 1
MOST_CHOICES = 1_000


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Questions(Dataset):
    """Tokens (answers, 64) and the number of the right one; at most MOST_CHOICES answers."""

    def __init__(self, num):
        self.choices = [4] * num
        self.choices[num // 2 + 1] = 60

    def __len__(self):
        return len(self.choices)

    def __getitem__(self, index):
        return torch.randint(1, 500, (min(self.choices[index], MOST_CHOICES), 64)), 0


def pad(samples):
    tokens, right = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(tokens, batch_first=True), torch.tensor(right)


class Chooser(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 1)

    def forward(self, tokens):
        hidden = self.encoder(self.embed(tokens.flatten(0, 1)))
        return self.head(hidden[:, 0]).view(tokens.shape[:2])


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Chooser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Questions(80), batch_size=BATCH, collate_fn=pad)
    small_machine(MEMORY)
    for step, (tokens, right) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(tokens), right) / ACCUM
        loss.backward()
        if step % ACCUM == 0:
            optimizer.step()
            optimizer.zero_grad()
    print("done", loss.item())


if __name__ == "__main__":
    main()
