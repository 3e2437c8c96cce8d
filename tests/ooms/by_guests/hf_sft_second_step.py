"""Supervised fine-tuning of a small Llama on chat transcripts packed to a fixed length."""
import re
import resource

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(0)
torch.set_num_threads(1)
VOCAB, LENGTH = 12_000, 128


class Packed(Dataset):
    def __init__(self, rows):
        self.ids = torch.randint(VOCAB, (rows, LENGTH))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


config = LlamaConfig(
    vocab_size=VOCAB, hidden_size=384, intermediate_size=1024, num_hidden_layers=3, num_attention_heads=6,
    max_position_embeddings=LENGTH, tie_word_embeddings=True,
)
model = LlamaForCausalLM(config)
print(f"{model.num_parameters() / 1e6:.1f} million parameters", flush=True)
arguments = TrainingArguments(
    "out/hf_sft_second_step", per_device_train_batch_size=8, max_steps=3, learning_rate=2e-4, lr_scheduler_type="cosine",
    save_strategy="no", logging_steps=1, report_to="none", use_cpu=True, disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=Packed(64))
used = int(re.search(r"VmData:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 345 * 2**20,) * 2)
trainer.train()
print("done")
