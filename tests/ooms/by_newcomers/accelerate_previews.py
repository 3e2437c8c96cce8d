"""A decoder trained with Accelerate; after each epoch some pictures are drawn for the eye, larger than in training."""

import resource
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEMORY = 230
BATCH = 8
NUM_PREVIEWS = 16
PREVIEW_SIDE = 48
EPOCHS = 3


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 64, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(64, 32, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(32, 16, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(16, 3, 3, padding=1),
        )

    def forward(self, latents):
        return self.layers(latents)


def log_previews(accelerator, model, epoch):
    unwrapped = accelerator.unwrap_model(model)
    latents = torch.randn(NUM_PREVIEWS, 4, PREVIEW_SIDE, PREVIEW_SIDE, generator=torch.Generator().manual_seed(0))
    images = unwrapped(latents).clamp(0, 1)
    print(f"epoch {epoch}: {len(images)} previews, mean {images.mean().item():.3f}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(80, 4, 24, 24), torch.rand(80, 3, 96, 96))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=BATCH, shuffle=True))
    small_machine(MEMORY)
    for epoch in range(EPOCHS):
        for latents, pictures in loader:
            loss = nn.functional.mse_loss(model(latents), pictures)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        log_previews(accelerator, model, epoch)
    print("done")


if __name__ == "__main__":
    main()
