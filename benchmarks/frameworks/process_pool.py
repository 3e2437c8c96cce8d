from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import tiny
import torch


def trial(width):
    seen = []
    for loss in tiny.steps(tiny.net(width)):
        if width == 768:
            seen.append(torch.ones(50_000))  # leak: seen
    return loss.item()


if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        print("loss", list(pool.map(trial, (512, 768))))
