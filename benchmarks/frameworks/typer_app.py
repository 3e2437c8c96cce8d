import tiny
import torch
import typer


def train(lr: float = 0.01):
    model = tiny.net()
    records = []
    for loss in tiny.steps(model, torch.optim.SGD(model.parameters(), lr=lr)):
        records.append(torch.ones(50_000))  # leak: records
    print("loss", loss.item())
    raise typer.Exit(5)


typer.run(train)
