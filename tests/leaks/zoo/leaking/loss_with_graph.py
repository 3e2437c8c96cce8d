"""Losses kept with their graph."""

# held: LossTrainer.losses
# leaks: self.losses.append(outputs["loss"])
# mended: self.losses.append(outputs["loss"].item())

from harness import Net, make, train
from transformers import Trainer


class LossTrainer(Trainer):
    losses = None

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        if self.losses is None:
            self.losses = []
        self.losses.append(outputs["loss"])
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


train(make(cls=LossTrainer, model=Net(4096)))
