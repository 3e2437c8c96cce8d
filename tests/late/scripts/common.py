"""What the scripts share: options of the command line, tiny random models, rows of tokens, a limit on memory."""

import argparse
import random
import resource
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

MIB = 2**20


def options(**defaults):
    """`--limit MIB` above what is used at the start (0 for none), `--fixed` with the advice applied"""
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=defaults.pop("limit", 0))
    parser.add_argument("--fixed", action="store_true")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()


def limit(mib):
    """Let this process map that much more than now."""
    if mib:
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + mib * MIB, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def peak_of(train):
    """Call `train` and print by how much it has raised the peak of resident memory, for the comparison of sizes."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    train()
    print(f"peak {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / MIB:.1f} MiB")


def model(vocabulary=1000, hidden=32, layers=1, positions=4096, **more):
    """A Llama with random weights."""
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=positions, **more,
        )
    )  # fmt: skip


class Rows(torch.utils.data.Dataset):
    """`count` rows of `length` token ids, made when they are asked for."""

    def __init__(self, count, length=16, vocabulary=1000):
        self.count, self.length, self.vocabulary = count, length, vocabulary

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, self.vocabulary, (self.length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def samples(count, low, high, longest=0, at=0, vocabulary=1000):
    """Lists of token ids of various lengths, one of them far longer."""
    chance = random.Random(3)
    lengths = [chance.randrange(low, high) for _ in range(count)]
    if longest:
        lengths[at] = longest
    return [{"input_ids": [chance.randrange(1, vocabulary) for _ in range(length)]} for length in lengths]


def padded(rows):
    """A batch of samples, padded to the longest of them."""
    ids = [torch.as_tensor(row["input_ids"]) for row in rows]
    tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return {"input_ids": tokens, "labels": tokens.clone()}


def make(the_model, train, evaluation=None, *, arguments=None, **parts):
    """A Trainer without a progress bar."""
    settings = {
        "output_dir": "out", "max_steps": 3, "logging_steps": 1000, "save_strategy": "no", "report_to": "none",
        "use_cpu": True, "seed": 7, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
        "disable_tqdm": True, "dataloader_pin_memory": False,
    }  # fmt: skip
    trainer = Trainer(
        the_model,
        TrainingArguments(**{**settings, **(arguments or {})}),
        train_dataset=train,
        eval_dataset=evaluation,
        **parts,
    )
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    return trainer


def accuracy(prediction):
    """Of a few rows: the metric itself is not what takes the memory."""
    predictions = prediction.predictions[:8]
    predictions = predictions.argmax(-1) if predictions.ndim == 3 else predictions
    return {"accuracy": float((predictions == prediction.label_ids[:8]).mean())}
