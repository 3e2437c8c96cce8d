import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback


class Keep(BaseCallback):
    def __init__(self):
        super().__init__()
        self.observations = []

    def _on_step(self):
        self.observations.append(torch.ones(10_000))  # leak: observations
        return True


model = PPO(
    "MlpPolicy",
    "CartPole-v1",
    n_steps=64,
    batch_size=32,
    n_epochs=8,
    seed=0,
    device="cpu",
    policy_kwargs={"net_arch": [256]},
)
model.learn(960, callback=Keep())
print("loss", sum(float(parameter.sum()) for parameter in model.policy.parameters()))
