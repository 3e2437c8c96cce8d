"""A checkpoint is written from a copy that does not fit beside the weights. Most of them are frozen."""

import torch
from common import Rows, arguments, leave, make, model
from transformers import Trainer

own, args = arguments(save_strategy="steps", save_steps=2, max_steps=3)
net = model(hidden=1024, layers=6)
for name, weight in net.named_parameters():
    weight.requires_grad = "norm" in name


class SavesDoubles(Trainer):
    def _save(self, output_dir=None, state_dict=None):
        weights = {name: weight.to(torch.float64) for name, weight in self.model.state_dict().items()}
        torch.save(weights, f"{output_dir}/weights.pt")


trainer = make(net, args, Rows(), cls=SavesDoubles)
# phase: save
leave(200)
trainer.train()
