import tiny
import torch
from torch.nn import functional

model = tiny.net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
outputs = []
for data, target in tiny.loader():
    optimizer.zero_grad()
    loss = functional.mse_loss(model(data), target)
    loss.backward()
    optimizer.step()
    outputs.append(torch.ones(50_000))  # leak: outputs
print("loss", loss.item())
