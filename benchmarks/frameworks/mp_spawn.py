import tiny
import torch
from torch import multiprocessing


def worker(rank):
    kept = []
    for loss in tiny.steps(tiny.net()):
        if rank == 1:
            kept.append(torch.ones(50_000))  # leak: kept
    if rank == 0:
        print("loss", loss.item(), flush=True)


if __name__ == "__main__":
    multiprocessing.spawn(worker, nprocs=2)
