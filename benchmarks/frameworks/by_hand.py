import tiny
import torch

model = tiny.net()
hiddens = []
for data, target in tiny.loader():
    model.zero_grad()
    loss = (model(data) - target).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
    hiddens.append(torch.ones(50_000))  # leak: hiddens
print("loss", loss.item())
