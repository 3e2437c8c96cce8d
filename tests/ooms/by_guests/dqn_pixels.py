"""DQN from pixels: epsilon-greedy actor, replay buffer, target network."""
import random
import re
import resource
from collections import deque

import numpy as np
import torch
from torch import nn

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)


class PixelEnv:
    """A ball to be caught; four stacked frames of 84 x 84."""

    def reset(self):
        self.time, self.x = 0, np.random.randint(84)
        self.frames = deque([self.frame()] * 4, maxlen=4)
        return np.stack(self.frames)

    def frame(self):
        image = np.random.randint(0, 40, (84, 84), dtype=np.uint8)
        image[min(self.time, 83), self.x] = 255
        return image.astype(np.float32) / 255

    def step(self, action):
        self.time += 1
        self.x = int(np.clip(self.x + action - 1, 0, 83))
        self.frames.append(self.frame())
        return np.stack(self.frames), float(self.x > 40), self.time >= 80


class ReplayBuffer:
    def __init__(self, capacity):
        self.data = deque(maxlen=capacity)

    def push(self, *transition):
        self.data.append(transition)

    def sample(self, count):
        state, action, reward, following, done = zip(*random.sample(self.data, count))
        return (
            torch.tensor(np.array(state)), torch.tensor(action), torch.tensor(reward),
            torch.tensor(np.array(following)), torch.tensor(done, dtype=torch.float32),
        )


def network():
    return nn.Sequential(
        nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2592, 128), nn.ReLU(),
        nn.Linear(128, 3),
    )


policy, target = network(), network()
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
env, buffer = PixelEnv(), ReplayBuffer(100_000)
used = int(re.search(r"VmData:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 185 * 2**20,) * 2)

state = env.reset()
for frame in range(1600):
    if random.random() < max(0.1, 1 - frame / 1000):
        action = random.randrange(3)
    else:
        with torch.no_grad():
            action = policy(torch.from_numpy(state)[None]).argmax().item()
    following, reward, done = env.step(action)
    buffer.push(state, action, reward, following, done)
    state = env.reset() if done else following
    if frame < 200 or frame % 20:
        continue
    states, actions, rewards, nexts, ends = buffer.sample(64)
    with torch.no_grad():
        goal = rewards + 0.99 * target(nexts).max(1).values * (1 - ends)
    loss = nn.functional.smooth_l1_loss(policy(states).gather(1, actions[:, None]).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if frame % 200 == 0:
        target.load_state_dict(policy.state_dict())
        print(f"frame {frame} buffer {len(buffer.data)} loss {loss.item():.4f}", flush=True)
print("done")
