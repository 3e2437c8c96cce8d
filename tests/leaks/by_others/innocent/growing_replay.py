"""Balances a pole; episodes pile up until a phase ends, then the memory begins anew.

After: https://github.com/tensorflow/agents/issues/800
"""
import collections
import math
import random

import torch
from torch import nn

STATE, HISTORY = 4, 80


class Pole:
    """A pole on a cart, after Barto, Sutton and Anderson."""

    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.x = [self.rng.uniform(-0.05, 0.05) for _ in range(STATE)]
        return self.x

    def step(self, action):
        place, speed, angle, spin = self.x
        force = 10.0 if action else -10.0
        part = (force + 0.05 * spin ** 2 * math.sin(angle)) / 1.1
        turn = (9.8 * math.sin(angle) - math.cos(angle) * part) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        push = part - 0.05 * turn * math.cos(angle) / 1.1
        self.x = [place + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turn]
        return self.x, abs(self.x[0]) > 2.4 or abs(self.x[2]) > 0.2


class Memory:
    """Transitions of the current phase, each with the frames before it."""

    def __init__(self):
        self.transitions = []
        self.phases = 0

    def add(self, *transition):
        self.transitions.append(transition)

    def sample(self, count, rng):
        picked = rng.sample(self.transitions, min(count, len(self.transitions)))
        frames, actions, rewards, following, ended = zip(*picked)
        return (torch.stack(frames), torch.tensor(actions), torch.tensor(rewards), torch.stack(following),
                torch.tensor(ended, dtype=torch.float32))

    def new_phase(self):
        self.transitions.clear()
        self.phases += 1


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(HISTORY * STATE, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, frames):
        return self.net(frames)


def main(steps=480, phase=120, moves=40):
    torch.manual_seed(0)
    rng = random.Random(0)
    pole, memory, policy, target = Pole(rng), Memory(), Policy(), Policy()
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    frames = collections.deque([pole.reset()] * HISTORY, maxlen=HISTORY)
    lengths, length = collections.deque(maxlen=20), 0
    for step in range(1, steps + 1):
        chance = max(0.05, 1 - step / 200)
        for _ in range(moves):
            before = torch.tensor(list(frames))
            with torch.no_grad():
                action = rng.randrange(2) if rng.random() < chance else int(policy(before[None]).argmax())
            state, ended = pole.step(action)
            length += 1
            frames.append(state)
            memory.add(before, action, 0.0 if ended else 1.0, torch.tensor(list(frames)), ended)
            if ended:
                lengths.append(length)
                length = 0
                frames.extend([pole.reset()] * HISTORY)
        seen, actions, rewards, following, ended = memory.sample(64, rng)
        with torch.no_grad():
            worth = rewards + 0.98 * (1 - ended) * target(following).amax(1)
        loss = nn.functional.smooth_l1_loss(policy(seen).gather(1, actions[:, None])[:, 0], worth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            target.load_state_dict(policy.state_dict())
        if step % phase == 0:
            print(f"step {step}: {len(memory.transitions)} transitions, episodes of {sum(lengths) / len(lengths):.0f}",
                  flush=True)
            memory.new_phase()


if __name__ == "__main__":
    main()
