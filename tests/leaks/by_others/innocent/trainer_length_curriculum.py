"""Trainer with a curriculum: the collator cuts to a length that grows with the step."""
import inspect
import optparse
import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

SHORT, LONG = 16, 112
BATCH = 8
STEPS = 300


class Snippets(Dataset):
    def __init__(self, text):
        self.ids = torch.tensor([min(ord(c), 127) for c in text])

    def __len__(self):
        return len(self.ids) - LONG

    def __getitem__(self, i):
        return {"ids": self.ids[i:i + LONG]}


class Curriculum(TrainerCallback):
    def __init__(self):
        self.length = SHORT
        self.used = []

    def on_step_begin(self, args, state, control, **kwargs):
        share = min(1.0, state.global_step / (0.7 * state.max_steps))
        self.length = int(SHORT + share * (LONG - SHORT))

    def collate(self, rows):
        ids = torch.stack([r["ids"][:self.length] for r in rows])
        self.used.append(self.length)
        return {"input_ids": ids, "labels": ids.clone()}


def main():
    torch.manual_seed(0)
    random.seed(0)
    text = inspect.getsource(optparse)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=LONG, n_embd=48, n_layer=2,
                                       n_head=2, bos_token_id=0, eos_token_id=0))
    curriculum = Curriculum()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=STEPS, per_device_train_batch_size=BATCH,
            learning_rate=1e-3, logging_steps=75, save_strategy="no", report_to="none",
            use_cpu=True, disable_tqdm=True, remove_unused_columns=False)
        Trainer(model=model, args=args, train_dataset=Snippets(text), callbacks=[curriculum],
                data_collator=curriculum.collate).train()
    print("lengths", curriculum.used[0], "to", curriculum.used[-1])


if __name__ == "__main__":
    main()
