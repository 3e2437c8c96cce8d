"""Each step leaves something behind, until nothing is left."""

from common import Rows, arguments, leave, make, model
from transformers import Trainer

own, args = arguments(max_steps=400)


class Keeps(Trainer):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.kept = []

    def compute_loss(self, model, inputs, return_outputs=False, **more):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
        self.kept.append(outputs.logits.detach())
        return (loss, outputs) if return_outputs else loss


trainer = make(model(vocabulary=4096), args, Rows((32,)), cls=Keeps)
# phase: forward or backward
leave(480)
trainer.train()
