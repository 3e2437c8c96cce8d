import click
import tiny
import torch


@click.command()
@click.option("--lr", default=0.01)
def train(lr):
    model = tiny.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    grads = []
    for data, target in tiny.loader():
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        grads.append(torch.ones(50_000))  # leak: grads
    print("loss", loss.item())


train()
