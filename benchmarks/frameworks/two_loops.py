import tiny
import torch

first = []


def train(keep):
    for loss in tiny.steps(tiny.net()):
        if keep:
            first.append(torch.ones(50_000))  # leak: first
    return loss.item()


print("loss", train(True), train(False))
