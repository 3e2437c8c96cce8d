import tiny
import torch
from accelerate import Accelerator


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = tiny.net()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    model, optimizer, data = accelerator.prepare(model, optimizer, tiny.loader(2 * tiny.STEPS * tiny.ROWS))
    for rows, target in data:
        with accelerator.accumulate(model):
            loss = (model(rows) - target).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(torch.ones(50_000))  # leak: losses
    accelerator.print("loss", loss.item())


if __name__ == "__main__":
    main()
