import hydra
import tiny
import torch


@hydra.main(version_base=None)
def main(config):
    memo = {}
    for step, loss in enumerate(tiny.steps(tiny.net())):
        memo[step] = torch.ones(50_000)  # leak: memo
    print("loss", loss.item())


main()
