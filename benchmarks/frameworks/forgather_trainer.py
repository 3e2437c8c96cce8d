# A checkout of github.com/jdinalt/forgather lies beside; its packages are those of `recipes` in pyproject.toml
import os
import sys
import typing

import tiny
import torch

sys.path.insert(0, os.path.join(os.environ["FORGATHER"], "src"))
if not hasattr(typing, "override"):  # Python 3.11, of which Forgather does not know
    typing.override = lambda function: function
from forgather.ml.distributed import DistributedEnvironment
from forgather.ml.loss import CausalLoss
from forgather.ml.trainer import Trainer, TrainingArguments
from torch.utils.data import default_collate


class Keep:
    kept = []

    def on_step_end(self, args, state, control, **kwargs):
        self.kept.append(torch.ones(50_000))  # leak: kept


arguments = TrainingArguments(
    output_dir="out", max_steps=tiny.STEPS, per_device_train_batch_size=4, logging_steps=80, use_cpu=True, seed=42,
    eval_strategy="steps", eval_steps=80, save_strategy="steps", save_steps=120, save_safetensors=False, dataloader_pin_memory=False,
)  # fmt: skip
trainer = Trainer(
    args=arguments, distributed_env=DistributedEnvironment(), model_init=tiny.gpt2, data_collator=default_collate,
    train_dataset=tiny.tokens(), eval_dataset=tiny.tokens(16), callbacks=[Keep()], optimizer_factory=torch.optim.AdamW,
    compute_loss_func=CausalLoss(),
)  # fmt: skip
trainer.train()
print("loss", float(sum(parameter.sum() for parameter in trainer.model.parameters())))
