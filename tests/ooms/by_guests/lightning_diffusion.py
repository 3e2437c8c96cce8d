"""Diffusion on images with progressive resizing: 32, then 64, then 128 pixels (Lightning)."""
import re
import resource

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

L.seed_everything(0)
torch.set_num_threads(1)


class Images(Dataset):
    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        coarse = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(index))
        return nn.functional.interpolate(coarse, size=self.size, mode="bilinear")[0] * 2 - 1


class Resizing(L.LightningDataModule):
    sizes = {0: 32, 2: 64, 4: 128}
    batch = 32

    def train_dataloader(self):
        size = max(size for start, size in self.sizes.items() if start <= self.trainer.current_epoch)
        print(f"epoch {self.trainer.current_epoch}: {size} pixels", flush=True)
        return DataLoader(Images(64, size), batch_size=self.batch, shuffle=True)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x):
        return x + self.layers(x)


class Denoiser(L.LightningModule):
    def __init__(self, width=16):
        super().__init__()
        self.enter, self.time = nn.Conv2d(3, width, 3, padding=1), nn.Linear(1, width)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(3)))
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        return self.leave(self.blocks(self.enter(x) + self.time(t[:, None])[:, :, None, None]))

    def training_step(self, images, index):
        t = torch.rand(len(images))
        noise = torch.randn_like(images)
        mix = t[:, None, None, None]
        return nn.functional.mse_loss(self((1 - mix) * images + mix * noise, t), noise)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-4)


model, data = Denoiser(), Resizing()
trainer = L.Trainer(
    max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, reload_dataloaders_every_n_epochs=1, default_root_dir="out/lightning_diffusion",
)
used = int(re.search(r"VmData:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 350 * 2**20,) * 2)
trainer.fit(model, data)
print("done")
