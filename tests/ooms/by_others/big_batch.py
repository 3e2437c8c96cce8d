"""Causal language model on bytes of code pairs, with the batch size of a larger machine.

After: https://github.com/ultralytics/yolov3/issues/491
"""

import inspect
import pickle
import resource
import tempfile
import turtle

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

BATCH = 96
ACCUM = 1
LENGTH = 256
CHECKPOINTING = False
DTYPE = torch.float32
STEPS = 3
MEMORY = 700

VOCAB = 2048


def small_machine(mib):
    """From here on this process may map so many MiB more than it has: stands for a machine with little memory."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class Pairs(Dataset):
    """Two neighbouring bytes are one token, folded to the vocabulary."""

    def __init__(self):
        text = "".join(inspect.getsource(module) for module in (turtle, pickle))
        codes = torch.tensor([min(ord(character), 127) for character in text])
        self.tokens = (codes[:-1:2] * 31 + codes[1::2]) % VOCAB

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        start = index * 7919 % (len(self.tokens) - LENGTH)
        row = self.tokens[start : start + LENGTH]
        return {"input_ids": row, "labels": row}


class Log(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print(f"step {state.global_step} of {state.max_steps}", flush=True)


def main():
    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(DTYPE)
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        gradient_checkpointing=CHECKPOINTING,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    data = Pairs()
    small_machine(MEMORY)
    print(Trainer(model, arguments, train_dataset=data, callbacks=[Log()]).train().training_loss)


if __name__ == "__main__":
    main()
