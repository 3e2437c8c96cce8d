import tiny
import torch
from torch import multiprocessing


def train(rank, model):
    kept = []
    for loss in tiny.steps(model, torch.optim.SGD(model.parameters(), lr=0.0)):
        kept.append(torch.ones(50_000))  # leak: kept
    print("loss", loss.item(), flush=True)


if __name__ == "__main__":
    model = tiny.net().share_memory()
    workers = [multiprocessing.get_context("spawn").Process(target=train, args=(rank, model)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
