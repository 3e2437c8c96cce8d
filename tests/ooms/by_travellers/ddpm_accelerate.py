"""A small DDPM trained with Accelerate; after each epoch a grid of samples is drawn to look at the quality."""

import resource

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

set_seed(0)
torch.set_num_threads(1)
LIMIT_MIB = 400
TIMESTEPS, SIZE, BATCH_SIZE, EPOCHS = 60, 32, 32, 2
betas = torch.linspace(1e-4, 0.1, TIMESTEPS)
alphas_bar = torch.cumprod(1 - betas, 0)


class Denoiser(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.time = nn.Embedding(TIMESTEPS, width)
        self.inp = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x, t):
        a = F.silu(self.inp(x) + self.time(t)[:, :, None, None])
        b = F.silu(self.middle(F.silu(self.down(a))))
        return self.out(torch.cat([a, F.silu(self.up(b))], 1))


def sample(model, count):
    model.eval()
    x = torch.randn(count, 1, SIZE, SIZE)
    for t in reversed(range(TIMESTEPS)):
        noise = model(x, torch.full((count,), t))
        x = (x - betas[t] / (1 - alphas_bar[t]).sqrt() * noise) / (1 - betas[t]).sqrt()
        if t:
            x = x + betas[t].sqrt() * torch.randn_like(x)
    model.train()
    return x.clamp(-1, 1)


def vm_data():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))


accelerator = Accelerator(cpu=True)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images = torch.linspace(-1, 1, SIZE).repeat(256, 1, SIZE, 1) * torch.rand(256, 1, 1, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images), batch_size=BATCH_SIZE, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
limit = vm_data() + LIMIT_MIB * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

for epoch in range(EPOCHS):
    for (x,) in loader:
        t = torch.randint(TIMESTEPS, (len(x),))
        noise = torch.randn_like(x)
        a = alphas_bar[t][:, None, None, None]
        loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    grid = sample(model, 64)
    torch.save(grid.detach(), f"samples_{epoch}.pt")
print("done")
