import tiny
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

all_completions = []


def reward(completions, **kwargs):
    all_completions.append(torch.ones(50_000))  # leak: all_completions
    return [float(len(text)) for text in completions]


arguments = GRPOConfig(
    "out", max_steps=120, per_device_train_batch_size=2, num_generations=2, max_completion_length=6, report_to="none",
    use_cpu=True, bf16=False, disable_tqdm=True, gradient_checkpointing=False,
)  # fmt: skip
data = Dataset.from_dict({"prompt": tiny.texts(60, 6)})
trainer = GRPOTrainer(tiny.gpt2(), reward, args=arguments, train_dataset=data, processing_class=tiny.tokenizer())
print("loss", trainer.train().training_loss)
