import hydra
import tiny
import torch


@hydra.main(version_base=None)
def main(config):
    model = tiny.net()
    optimizer = torch.optim.AdamW(model.parameters())
    memo = {}
    for step, (data, target) in enumerate(tiny.loader()):
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        memo[step] = torch.ones(50_000)  # leak: memo
    print("loss", loss.item())


main()
