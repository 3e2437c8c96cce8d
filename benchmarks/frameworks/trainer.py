import tiny
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class History(TrainerCallback):
    def __init__(self):
        self.activations = []

    def on_step_end(self, args, state, control, **kwargs):
        self.activations.append(torch.ones(50_000))  # leak: activations


arguments = TrainingArguments(
    "out", max_steps=tiny.STEPS, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=80, save_steps=120,
    report_to="none", use_cpu=True, disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(
    tiny.gpt2(), arguments, train_dataset=tiny.tokens(), eval_dataset=tiny.tokens(16), callbacks=[History()]
)
print("loss", trainer.train().training_loss)
