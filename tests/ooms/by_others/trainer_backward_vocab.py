"""Word level GPT-2 with a big vocabulary on little memory."""
import glob
import os
import re
import resource
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

BATCH = 32
ACCUM = 1
BLOCK = 64
VOCAB = 8192
STEPS = 8
ROOM_MIB = 165


def set_limit(mib):
    line = next(s for s in open("/proc/self/status") if s.startswith("VmData"))
    n = int(line.split()[1]) * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (n, n))


class Limit(TrainerCallback):
    """What the container would do, from the first step on."""

    def on_train_begin(self, args, state, control, **kwargs):
        set_limit(ROOM_MIB)


class Words(Dataset):
    def __init__(self):
        vocab, ids = {}, []
        for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:40]:
            for w in re.findall(r"\w+|\S", open(path, encoding="utf-8", errors="replace").read()):
                ids.append(vocab.setdefault(w, len(vocab)) % VOCAB)
        self.ids = torch.tensor(ids)

    def __len__(self):
        return len(self.ids) // BLOCK

    def __getitem__(self, i):
        x = self.ids[i * BLOCK:(i + 1) * BLOCK]
        return {"input_ids": x, "labels": x}


def main():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=BLOCK, n_embd=32, n_layer=1,
                                       n_head=2, bos_token_id=0, eos_token_id=0))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=STEPS, per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=ACCUM, logging_steps=4, save_strategy="no",
            report_to="none", use_cpu=True, disable_tqdm=True)
        Trainer(model=model, args=args, train_dataset=Words(), callbacks=[Limit()]).train()
    print("finished")


if __name__ == "__main__":
    main()
