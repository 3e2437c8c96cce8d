"""Masked language model; the evaluation collects the scores of all tokens for an accuracy.

After: https://github.com/huggingface/transformers/issues/12878
"""

import inspect
import mailbox
import pydoc
import resource
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments, set_seed

BATCH = 8
ACCUM = 1
LENGTH = 128
EVAL_BATCH = 16
EVAL_ROWS = 640
EVAL_ACCUM = None
EVAL_METRICS = True
ARGMAX_FIRST = False
STEPS = 40
EVAL_EVERY = 20
MEMORY = 800

VOCAB, MASK = 3000, 2999


def small_machine(mib):
    """From here on this process may map so many MiB more than it has: stands for a machine with little memory."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class Trigrams(Dataset):
    """Three neighbouring characters are one token, folded to the vocabulary."""

    def __init__(self, module, rows, seed):
        codes = torch.tensor([min(ord(character), 127) for character in inspect.getsource(module)])
        self.tokens = (codes[:-2] * 961 + codes[1:-1] * 31 + codes[2:]) % MASK
        self.rows, self.seed = rows, seed

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 100_003 + index)
        start = torch.randint(len(self.tokens) - LENGTH, (1,), generator=generator).item()
        row = self.tokens[start : start + LENGTH]
        hidden = torch.rand(LENGTH, generator=generator) < 0.15
        return {"input_ids": row.masked_fill(hidden, MASK), "labels": row.masked_fill(~hidden, -100)}


def accuracy(prediction):
    guess = prediction.predictions
    guess = guess if guess.ndim == 2 else guess.argmax(-1)
    hidden = prediction.label_ids != -100
    return {"accuracy": float((guess == prediction.label_ids)[hidden].mean())}


class Log(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print(state.global_step, metrics, flush=True)


def main():
    set_seed(0)
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
    )
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=EVAL_BATCH,
        gradient_accumulation_steps=ACCUM,
        eval_accumulation_steps=EVAL_ACCUM,
        eval_strategy="steps",
        eval_steps=EVAL_EVERY,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    small_machine(MEMORY)
    trainer = Trainer(
        BertForMaskedLM(config),
        arguments,
        train_dataset=Trigrams(pydoc, 4000, seed=1),
        eval_dataset=Trigrams(mailbox, EVAL_ROWS, seed=2),
        compute_metrics=accuracy if EVAL_METRICS else None,
        preprocess_logits_for_metrics=(lambda logits, labels: logits.argmax(-1)) if ARGMAX_FIRST else None,
        callbacks=[Log()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
