"""Fine-tuning a small GPT-2 with transformers.Trainer, with token accuracy as the evaluation metric."""

import resource

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
torch.set_num_threads(1)
LIMIT_MIB = 450
VOCAB, BLOCK = 8_000, 128


class Blocks(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(VOCAB, (count, 1), generator=generator)
        self.ids = (start + torch.arange(BLOCK) * 3) % VOCAB

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def compute_metrics(prediction):
    logits, labels = prediction
    guess = logits.argmax(-1)[:, :-1]
    return {"accuracy": float((guess == labels[:, 1:]).mean())}


def vm_data():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))


config = GPT2Config(vocab_size=VOCAB, n_positions=BLOCK, n_embd=64, n_layer=2, n_head=4)
model = GPT2LMHeadModel(config)
arguments = TrainingArguments(
    output_dir="out_gpt",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    max_steps=6,
    eval_strategy="steps",
    eval_steps=3,
    logging_steps=2,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=Blocks(400, seed=1),
    eval_dataset=Blocks(240, seed=2),
    compute_metrics=compute_metrics,
)
limit = vm_data() + LIMIT_MIB * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
trainer.train()
print("done")
