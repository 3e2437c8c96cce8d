"""Logits kept, detached."""

# held: KeepTrainer.kept
# leaks: self.kept.append(big)
# mended: self.kept.append(float(big.mean()))
# bytes: 65536

from harness import make, train
from transformers import Trainer


class KeepTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kept = []

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        big = outputs["logits"].detach().repeat(64, 8)
        self.kept.append(big)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


train(make(cls=KeepTrainer))
