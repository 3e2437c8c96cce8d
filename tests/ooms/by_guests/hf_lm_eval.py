"""Fine-tune a causal language model; token accuracy on the validation set every 10 steps."""
import re
import resource

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
torch.set_num_threads(1)
VOCAB, LENGTH = 8000, 64


class Tokens(Dataset):
    def __init__(self, rows, seed):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(VOCAB // 4, (rows, LENGTH), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def compute_metrics(prediction):
    predicted = prediction.predictions.argmax(-1)[:, :-1]
    return {"token_accuracy": float((predicted == prediction.label_ids[:, 1:]).mean())}


config = GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4)
model = GPT2LMHeadModel(config)
arguments = TrainingArguments(
    "out/hf_lm_eval", per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=20, eval_strategy="steps",
    eval_steps=10, learning_rate=5e-4, save_strategy="no", logging_steps=10, report_to="none", use_cpu=True, disable_tqdm=True,
)
trainer = Trainer(
    model, arguments, train_dataset=Tokens(480, 1), eval_dataset=Tokens(240, 2), compute_metrics=compute_metrics
)
used = int(re.search(r"VmData:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 300 * 2**20,) * 2)
trainer.train()
print("done")
