import tiny
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train(config):
    results = []
    for _ in tiny.steps(tiny.net()):
        results.append(torch.ones(50_000))  # leak: results


TorchTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit()
print("loss", 0)
