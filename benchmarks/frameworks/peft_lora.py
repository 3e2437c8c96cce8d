import tiny
import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainerCallback, TrainingArguments


class Snapshots(TrainerCallback):
    def __init__(self):
        self.weights = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.weights.append(torch.ones(50_000))  # leak: weights


model = get_peft_model(
    tiny.gpt2(), LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["c_attn"], fan_in_fan_out=True)
)
arguments = TrainingArguments(
    "out", max_steps=tiny.STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2, report_to="none",
    use_cpu=True, disable_tqdm=True,
)  # fmt: skip
print("loss", Trainer(model, arguments, train_dataset=tiny.tokens(), callbacks=[Snapshots()]).train().training_loss)
