import tiny
import torch
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cpu")
model = tiny.net()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
history = []
for data, target in fabric.setup_dataloaders(tiny.loader()):
    loss = (model(data) - target).square().mean()
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    history.append(torch.ones(50_000))  # leak: history
print("loss", loss.item())
