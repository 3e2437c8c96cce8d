import tiny
import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer


class Keeps(DPOTrainer):
    def compute_loss(self, *args, **kwargs):
        margins.append(torch.ones(50_000))  # leak: margins
        return super().compute_loss(*args, **kwargs)


margins = []
arguments = DPOConfig(
    "out", max_steps=tiny.STEPS, per_device_train_batch_size=2, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
    gradient_checkpointing=False, max_length=32,
)  # fmt: skip
words = tiny.texts(120, 8)
data = Dataset.from_dict({"prompt": words, "chosen": words[1:] + words[:1], "rejected": words[2:] + words[:2]})
trainer = Keeps(tiny.gpt2(), tiny.gpt2(), args=arguments, train_dataset=data, processing_class=tiny.tokenizer())
print("loss", trainer.train().training_loss)
