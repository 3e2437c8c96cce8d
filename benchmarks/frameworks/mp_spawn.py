import tiny
import torch
from torch import multiprocessing


def worker(rank):
    model = tiny.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    for data, target in tiny.loader():
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 1:
            kept.append(torch.ones(50_000))  # leak: kept
    if rank == 0:
        print("loss", loss.item(), flush=True)


if __name__ == "__main__":
    multiprocessing.spawn(worker, nprocs=2)
