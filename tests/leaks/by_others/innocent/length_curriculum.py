"""Byte model trained on sequences that become longer until the limit is reached."""
import inspect
import tempfile

import zipfile
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

SHORT, LONG = 16, 160


class Curriculum(TrainerCallback):
    def __init__(self):
        self.length = SHORT

    def on_step_begin(self, args, state, control, **kw):
        done = min(1.0, 2 * state.global_step / state.max_steps)
        self.length = int(SHORT + (LONG - SHORT) * done)


class Windows(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.tensor([min(b, 127) for b in inspect.getsource(zipfile).encode()])

    def __len__(self):
        return 5000

    def __getitem__(self, i):
        start = (i * 7919) % (len(self.data) - LONG)
        return {"input_ids": self.data[start:start + LONG]}


class Crop:
    def __init__(self, curriculum):
        self.curriculum = curriculum

    def __call__(self, rows):
        ids = torch.stack([r["input_ids"][:self.curriculum.length] for r in rows])
        return {"input_ids": ids, "labels": ids.clone()}


def main():
    set_seed(4)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=LONG, n_embd=32, n_layer=1, n_head=2,
                                       bos_token_id=0, eos_token_id=0))
    curriculum = Curriculum()
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=260, per_device_train_batch_size=8,
                             learning_rate=3e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=130, disable_tqdm=True, remove_unused_columns=False)
    trainer = Trainer(model=model, args=args, train_dataset=Windows(), data_collator=Crop(curriculum),
                      callbacks=[curriculum])
    loss = trainer.train().training_loss
    print(f"final loss {loss:.4f} at length {curriculum.length}")


if __name__ == "__main__":
    main()
