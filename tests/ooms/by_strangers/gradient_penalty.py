"""A critic with a gradient penalty in every eighth step, in a plain loop with two networks."""

import resource
from pathlib import Path

import torch
from torch import nn

MEMORY = 215
BATCH = 32
ACCUM = 1
SIDE = 32
PENALTY_EVERY = 8
PENALTY_BATCH = None
STEPS = 20


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        layers, width = [], 3
        for _ in range(5):
            layers += [nn.Conv2d(width, 48, 3, padding=1), nn.SiLU()]
            width = 48
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(48, 1)

    def forward(self, images):
        return self.head(self.body(images).mean((2, 3)))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 3 * SIDE * SIDE)

    def forward(self, noise):
        return torch.tanh(self.layer(noise)).view(-1, 3, SIDE, SIDE)


def penalty(critic, real, fake):
    real, fake = real[:PENALTY_BATCH], fake[:PENALTY_BATCH]
    mix = torch.rand(len(real), 1, 1, 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    scores = critic(between)
    (gradient,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
    return 10 * (gradient.flatten(1).norm(dim=1) - 1).square().mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    critic, generator = Critic(), Generator()
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4)
    small_machine(MEMORY)
    for step in range(STEPS):
        critic_optimizer.zero_grad()
        for _ in range(ACCUM):
            real = torch.rand(BATCH, 3, SIDE, SIDE) * 2 - 1
            fake = generator(torch.randn(BATCH, 64)).detach()
            loss = critic(fake).mean() - critic(real).mean()
            (loss / ACCUM).backward()
            if step % PENALTY_EVERY == PENALTY_EVERY - 1:
                (penalty(critic, real, fake) / ACCUM).backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        for _ in range(ACCUM):
            (-critic(generator(torch.randn(BATCH, 64))).mean() / ACCUM).backward()
        generator_optimizer.step()
    print("finished", round(loss.item(), 3))


if __name__ == "__main__":
    main()
