"""A running sum that was never detached."""

# held: SumTrainer.total
# leaks: self.total = self.total + outputs["loss"]
# mended: self.total = self.total + outputs["loss"].detach()

from harness import Net, make, train
from transformers import Trainer


class SumTrainer(Trainer):
    total = 0.0

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        self.total = self.total + outputs["loss"]
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


train(make(cls=SumTrainer, model=Net(4096)))
