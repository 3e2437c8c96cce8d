import tiny
import torch

cache = []


def test_training():
    model = tiny.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for data, target in tiny.loader():
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        cache.append(torch.ones(50_000))  # leak: cache
    print("loss", loss.item())
