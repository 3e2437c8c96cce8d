"""Style transfer from coarse to fine: the picture itself is what is optimized, at one size after the other."""

import resource
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

MEMORY = 400
SIZES = (128, 192, 256, 384)
STEPS_PER_SIZE = 8


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def features():
    layers, before = [], 3
    for width in (32, 32, 64, 64):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
        before = width
    return nn.Sequential(*layers).requires_grad_(False)


def gram(x):
    flat = x.flatten(2)[0]
    return flat @ flat.T / flat.shape[1]


def grams(vgg, picture):
    found = []
    for layer in vgg:
        picture = layer(picture)
        if isinstance(layer, nn.ReLU):
            found.append(gram(picture))
    return found


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    vgg = features()
    style, content = torch.rand(1, 3, 128, 128), torch.rand(1, 3, 600, 600)
    with torch.no_grad():
        wanted = grams(vgg, style)
    small_machine(MEMORY)
    picture = F.interpolate(content, size=SIZES[0])
    for size in SIZES:
        picture = F.interpolate(picture.detach(), size=size, mode="bilinear").requires_grad_()
        optimizer = torch.optim.Adam([picture], lr=0.05)
        for _ in range(STEPS_PER_SIZE):
            loss = sum(F.mse_loss(a, b) for a, b in zip(grams(vgg, picture), wanted, strict=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{size}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
