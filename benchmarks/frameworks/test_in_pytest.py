import tiny
import torch

cache = []


def test_training():
    for loss in tiny.steps(tiny.net()):
        cache.append(torch.ones(50_000))  # leak: cache
    print("loss", loss.item())
