import tiny
import torch

first = []


def train(keep):
    model = tiny.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for data, target in tiny.loader():
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if keep:
            first.append(torch.ones(50_000))  # leak: first
    return loss.item()


print("loss", train(True), train(False))
