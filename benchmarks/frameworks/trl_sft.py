import tiny
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer


class Samples(TrainerCallback):
    kept = {}

    def on_step_end(self, args, state, control, **kwargs):
        self.kept[state.global_step] = torch.ones(50_000)  # leak: kept


arguments = SFTConfig(
    "out", max_steps=tiny.STEPS, per_device_train_batch_size=4, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
    gradient_checkpointing=False,
)  # fmt: skip
data = Dataset.from_dict({"text": tiny.texts(200)})
trainer = SFTTrainer(
    tiny.gpt2(), arguments, train_dataset=data, processing_class=tiny.tokenizer(), callbacks=[Samples()]
)
print("loss", trainer.train().training_loss)
