"""GPT-2 on bytes; whenever a checkpoint is saved, the model and its optimizer are copied as a way back.

After: https://github.com/lucidrains/ema-pytorch/issues/35
"""

import collections
import copy
import difflib
import doctest
import inspect
import optparse
import resource
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

BATCH = 1
ACCUM = 1
LENGTH = 64
WIDTH = 320
COPIES = 3
COPY_OPTIMIZER = True
STEPS = 50
SAVE_EVERY = 10
MEMORY = 350


def small_machine(mib):
    """From here on this process may map so many MiB more than it has: stands for a machine with little memory."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class Corpus(Dataset):
    def __init__(self):
        text = "".join(inspect.getsource(module) for module in (doctest, difflib, optparse))
        self.codes = torch.tensor([min(ord(character), 127) for character in text])

    def __len__(self):
        return len(self.codes) // LENGTH

    def __getitem__(self, index):
        row = self.codes[index * LENGTH : (index + 1) * LENGTH]
        return {"input_ids": row, "labels": row}


class WayBack(TrainerCallback):
    """Goes back to an earlier copy when the loss gets much worse."""

    def __init__(self, factor=2.0):
        self.factor = factor
        self.copies = collections.deque(maxlen=COPIES)
        self.best = float("inf")

    def on_save(self, args, state, control, model=None, optimizer=None, **kwargs):
        if COPIES:
            self.copies.append(copy.deepcopy((model, optimizer) if COPY_OPTIMIZER else (model, None)))
        print(f"step {state.global_step}: {len(self.copies)} copies", flush=True)

    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        loss = logs.get("loss")
        if loss is None:
            return
        self.best = min(self.best, loss)
        if loss > self.factor * self.best and self.copies:
            model.load_state_dict(self.copies[-1][0].state_dict())
            print(f"step {state.global_step}: went back", flush=True)


def main():
    set_seed(0)
    config = GPT2Config(
        vocab_size=128,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=6,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    small_machine(MEMORY)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=ACCUM,
            learning_rate=3e-4,
            save_steps=SAVE_EVERY,
            save_total_limit=1,
            logging_steps=10,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Corpus(), callbacks=[WayBack()]).train()


if __name__ == "__main__":
    main()
