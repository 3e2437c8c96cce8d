"""A graph network trains on sampled neighbours and is tested on the whole graph at once."""

import resource
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

MEMORY = 300
NODES = 8_000
EDGES = 120_000
FEATURES = 64
HIDDEN = 192
CLASSES = 12
BATCH = 256
EVAL_EVERY = 15
STEPS = 45


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class AttentionLayer(nn.Module):
    """Messages weighted by what both ends of an edge have."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.project = nn.Linear(inputs, outputs)
        self.score = nn.Linear(2 * outputs, 1)

    def forward(self, nodes, edges):
        nodes = self.project(nodes)
        source, target = edges
        both = torch.cat([nodes[source], nodes[target]], dim=1)
        weight = torch.sigmoid(F.leaky_relu(self.score(both)))
        summed = torch.zeros_like(nodes)
        summed.index_add_(0, target, nodes[source] * weight)
        return summed


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = AttentionLayer(FEATURES, HIDDEN)
        self.second = AttentionLayer(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, nodes, edges):
        nodes = F.elu(self.first(nodes, edges))
        return self.head(F.elu(self.second(nodes, edges)))


def sample(edges, chosen):
    """At most 4,000 of the edges that end in one of the chosen nodes."""
    wanted = torch.zeros(NODES, dtype=torch.bool)
    wanted[chosen] = True
    return edges[:, wanted[edges[1]]][:, :4_000]


@torch.no_grad()
def test(model, nodes, edges, labels):
    model.eval()
    found = model(nodes, edges).argmax(1)
    model.train()
    return (found == labels).float().mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    nodes = torch.randn(NODES, FEATURES)
    edges = torch.randint(NODES, (2, EDGES))
    labels = torch.randint(CLASSES, (NODES,))
    model = GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    small_machine(MEMORY)
    for step in range(1, STEPS + 1):
        chosen = torch.randperm(NODES)[:BATCH]
        scores = model(nodes, sample(edges, chosen))[chosen]
        loss = F.cross_entropy(scores, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVAL_EVERY == 0:
            print(f"step {step}: loss {loss.item():.3f}, right {test(model, nodes, edges, labels):.3f}")
    print("done")


if __name__ == "__main__":
    main()
