"""Q-learning from frames: what was seen is kept in a replay memory, from which the batches are drawn."""

import random
import resource
from collections import namedtuple
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

MEMORY = 200
BATCH = 32
CAPACITY = 20_000
FRAMES = 3_000
SIDE = 84

Transition = namedtuple("Transition", "state action reward next_state")


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class ReplayMemory:
    def __init__(self, capacity):
        self.capacity = capacity
        self.memory = []
        self.position = 0

    def push(self, *values):
        if len(self.memory) < self.capacity:
            self.memory.append(None)
        self.memory[self.position] = Transition(*values)
        self.position = (self.position + 1) % self.capacity

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 8, stride=4)
        self.conv2 = nn.Conv2d(8, 16, 4, stride=2)
        self.head = nn.Linear(16 * 9 * 9, 4)

    def forward(self, x):
        return self.head(F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(1))


def observe(state):
    """The next state: the last three frames and a new one, from 0 to 1."""
    frame = torch.randint(256, (1, 1, SIDE, SIDE)) / 255
    return torch.cat([state[:, 1:], frame], dim=1)


def optimize(model, optimizer, memory):
    batch = Transition(*zip(*memory.sample(BATCH), strict=True))
    states, following = torch.cat(batch.state), torch.cat(batch.next_state)
    actions, rewards = torch.tensor(batch.action)[:, None], torch.tensor(batch.reward)
    values = model(states).gather(1, actions)[:, 0]
    with torch.no_grad():
        wanted = rewards + 0.99 * model(following).max(1).values
    loss = F.smooth_l1_loss(values, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    model = DQN()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    memory = ReplayMemory(CAPACITY)
    small_machine(MEMORY)
    state = torch.zeros(1, 4, SIDE, SIDE)
    for _ in range(FRAMES):
        action = random.randrange(4)
        next_state = observe(state)
        memory.push(state, action, random.random(), next_state)
        state = next_state
        if len(memory) >= BATCH:
            optimize(model, optimizer, memory)
    print("done", len(memory))


if __name__ == "__main__":
    main()
