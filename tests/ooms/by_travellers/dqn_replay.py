"""DQN on an Atari-like environment: 84 x 84 frames, stacks of four, a replay buffer."""

import random
import resource
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
random.seed(0)
torch.set_num_threads(1)
LIMIT_MIB = 350
BUFFER_SIZE, TOTAL_STEPS, LEARNING_STARTS, TRAIN_EVERY, BATCH_SIZE = 100_000, 3_000, 300, 30, 32


class Catch:
    """A ball falls, a paddle moves; observations are four stacked grey frames."""

    def reset(self):
        self.ball, self.row, self.paddle = random.randrange(84), 0, 42
        self.frames = deque([self.draw()] * 4, maxlen=4)
        return torch.stack(list(self.frames))

    def draw(self):
        frame = torch.zeros(84, 84, dtype=torch.uint8)
        frame[self.row, self.ball] = 255
        frame[83, max(0, self.paddle - 5) : self.paddle + 5] = 255
        return frame

    def step(self, action):
        self.row += 2
        self.paddle = min(83, max(0, self.paddle + 4 * (action - 1)))
        done = self.row >= 82
        self.frames.append(self.draw())
        reward = float(abs(self.ball - self.paddle) < 6) if done else 0.0
        return torch.stack(list(self.frames)), reward, done


def make_net():
    return nn.Sequential(
        nn.Conv2d(4, 16, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 81, 128),
        nn.ReLU(),
        nn.Linear(128, 3),
    )


def vm_data():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))


def preprocess(observation):
    return observation.float() / 255.0


net, target = make_net(), make_net()
target.load_state_dict(net.state_dict())
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
buffer = deque(maxlen=BUFFER_SIZE)
limit = vm_data() + LIMIT_MIB * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

env = Catch()
state = preprocess(env.reset())
for step in range(TOTAL_STEPS):
    if random.random() < 0.2:
        action = random.randrange(3)
    else:
        with torch.no_grad():
            action = net(state.unsqueeze(0)).argmax().item()
    observation, reward, done = env.step(action)
    next_state = preprocess(observation)
    buffer.append((state, action, reward, next_state.clone(), done))
    state = preprocess(env.reset()) if done else next_state
    if step >= LEARNING_STARTS and step % TRAIN_EVERY == 0:
        s, a, r, n, d = zip(*random.sample(buffer, BATCH_SIZE), strict=True)
        q = net(torch.stack(s)).gather(1, torch.tensor(a).unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = target(torch.stack(n)).max(1).values
        loss = F.smooth_l1_loss(q, torch.tensor(r) + 0.99 * best * (1 - torch.tensor(d).float()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if step % 1000 == 0:
        target.load_state_dict(net.state_dict())
        print(f"step {step}: {len(buffer)} transitions", flush=True)
print("done")
