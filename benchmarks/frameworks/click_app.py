import click
import tiny
import torch


@click.command()
@click.option("--lr", default=0.01)
def train(lr):
    model = tiny.net()
    grads = []
    for loss in tiny.steps(model, torch.optim.SGD(model.parameters(), lr=lr)):
        grads.append(torch.ones(50_000))  # leak: grads
    print("loss", loss.item())


train()
