"""A word-level language model whose windows vary in length, as AWD-LSTM has them; the text is (time, batch)."""

import random
import resource
from pathlib import Path

import torch
from torch import nn

MEMORY = 430
BATCH = 40
BPTT = 35
WORDS = 12_000
WIDTH = 128
STEPS = 40


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, 1)
        self.decoder = nn.Linear(WIDTH, WORDS)

    def forward(self, source, hidden):
        output, hidden = self.rnn(self.encoder(source), hidden)
        return self.decoder(output), hidden


def batchify(tokens, width):
    rows = len(tokens) // width
    return tokens[: rows * width].view(width, rows).t().contiguous()


def get_batch(source, start, length):
    length = min(length, len(source) - 1 - start)
    return source[start : start + length], source[start + 1 : start + 1 + length].reshape(-1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    random.seed(3)
    tokens = torch.randint(WORDS, (120_000,))
    train_data = batchify(tokens, BATCH)
    model = RNNModel()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    small_machine(MEMORY)
    hidden = (torch.zeros(1, BATCH, WIDTH), torch.zeros(1, BATCH, WIDTH))
    start = 0
    for step in range(STEPS):
        wanted = BPTT if random.random() < 0.95 else 2 * BPTT
        data, targets = get_batch(train_data, start, max(5, int(random.gauss(wanted, 5))))
        hidden = tuple(state.detach() for state in hidden)
        optimizer.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output.view(-1, WORDS), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        start += len(data)
        print(f"step {step}: {len(data)} words, loss {loss.item():.3f}")
    print("done")


if __name__ == "__main__":
    main()
