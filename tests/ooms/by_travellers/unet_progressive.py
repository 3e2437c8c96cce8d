"""Binary segmentation with a small U-Net, trained with progressive resizing: 64, then 128, then 256 pixels."""

import resource

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
LIMIT_MIB = 600
BATCH_SIZE = 16
STAGES = [(64, 4), (128, 2), (256, 1)]  # resolution, batches of 16 images


class Block(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1),
            nn.BatchNorm2d(cout),
            nn.ReLU(),
            nn.Conv2d(cout, cout, 3, padding=1),
            nn.BatchNorm2d(cout),
            nn.ReLU(),
        )


class UNet(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.down1, self.down2, self.down3 = Block(3, base), Block(base, base * 2), Block(base * 2, base * 4)
        self.up2, self.up1 = Block(base * 6, base * 2), Block(base * 3, base)
        self.head = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.down3(F.max_pool2d(b, 2))
        b = self.up2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.up1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return self.head(a)


def batches(size, count, batch_size):
    for _ in range(count):
        images = torch.rand(batch_size, 3, size, size)
        masks = (images.mean(1, keepdim=True) > 0.5).float()
        yield images, masks


def vm_data():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))


model = UNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
limit = vm_data() + LIMIT_MIB * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

model.train()
for size, count in STAGES:
    for images, masks in batches(size, count, BATCH_SIZE):
        optimizer.zero_grad()
        logits = model(images)
        loss = F.binary_cross_entropy_with_logits(logits, masks)
        loss.backward()
        optimizer.step()
    print(f"resolution {size}: loss {loss.item():.4f}", flush=True)
print("done")
