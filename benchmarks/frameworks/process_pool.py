from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import tiny
import torch


def trial(width):
    model = tiny.net(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    for data, target in tiny.loader():
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if width == 768:
            seen.append(torch.ones(50_000))  # leak: seen
    return loss.item()


if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        print("loss", list(pool.map(trial, (512, 768))))
