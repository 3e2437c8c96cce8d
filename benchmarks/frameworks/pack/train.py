import tiny
import torch

from pack.model import Model

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for data, target in tiny.loader():
    loss = (model(data) - target).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("loss", loss.item())
