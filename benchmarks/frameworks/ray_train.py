import tiny
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train(config):
    model = tiny.net()
    optimizer = torch.optim.AdamW(model.parameters())
    results = []
    for data, target in tiny.loader():
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        results.append(torch.ones(50_000))  # leak: results


TorchTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit()
print("loss", 0)
