"""Self-supervised pictures: after each epoch a nearest-neighbour classifier on the features of the training set."""

import resource
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 200
BATCH = 32
EPOCHS = 2


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def encoder():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def features(net, loader):
    """Of all pictures, and their labels."""
    feats, labels = [], []
    net.eval()
    for x, y in loader:
        feats.append(F.normalize(net(x), dim=1))
        labels.append(y)
    net.train()
    return torch.cat(feats), torch.cat(labels)


def knn_accuracy(net, train_loader, test_loader, k=5):
    bank, bank_labels = features(net, train_loader)
    queries, labels = features(net, test_loader)
    nearest = (queries @ bank.T).topk(k, dim=1).indices
    return (bank_labels[nearest].mode(dim=1).values == labels).float().mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net, head = encoder(), nn.Linear(32, 32)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.05)
    train = TensorDataset(torch.rand(2_400, 3, 32, 32), torch.randint(10, (2_400,)))
    test = TensorDataset(torch.rand(100, 3, 32, 32), torch.randint(10, (100,)))
    train_loader = DataLoader(train, batch_size=BATCH, shuffle=True)
    small_machine(MEMORY)
    for epoch in range(EPOCHS):
        for x, _ in train_loader:
            first, second = (head(net(x + 0.1 * torch.randn_like(x))) for _ in range(2))
            loss = -F.cosine_similarity(first, second).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = knn_accuracy(net, train_loader, DataLoader(test, batch_size=BATCH))
        print(f"epoch {epoch}: {accuracy:.3f}")
    print("done")


if __name__ == "__main__":
    main()
