import tiny
import torch
import typer


def train(lr: float = 0.01):
    model = tiny.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    records = []
    for data, target in tiny.loader():
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        records.append(torch.ones(50_000))  # leak: records
    print("loss", loss.item())
    raise typer.Exit(5)


typer.run(train)
