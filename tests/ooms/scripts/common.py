"""What the scripts share: arguments from the command line, tiny random models, a limit on this process's memory.

Every script takes all of TrainingArguments, and the options of `Script`, as users' scripts do.
"""

import resource
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, HfArgumentParser, LlamaConfig, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

MIB = 2**20


@dataclass
class Script:
    """Options that are the script's own."""

    max_length: int = 0
    dtype: str = "float32"
    rows: int = 0
    max_new_tokens: int = 0
    preprocess_logits_for_metrics: str = ""


def arguments(own=(), **defaults):
    """The options of the script and the trainer's; the command line's go before these defaults."""
    settings = {
        "output_dir": "out",
        "max_steps": 3,
        "logging_steps": 50,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "seed": 7,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    parser = HfArgumentParser((Script, TrainingArguments))
    parser.set_defaults(**{**settings, **dict(own), **defaults})
    for option in parser._actions:
        option.required = False  # transformers 4 asks for a folder
    return parser.parse_args_into_dataclasses()


def model(hidden=64, layers=2, vocabulary=256, dtype="float32", intermediate=None, **more):
    """A Llama with random weights."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate or 2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=100_000,
        **more,
    )
    name = "dtype" if transformers.__version__ >= "5" else "torch_dtype"
    return AutoModelForCausalLM.from_config(config, **{name: getattr(torch, dtype)})


class Rows(torch.utils.data.Dataset):
    """Rows of token ids; `lengths` are repeated, and cut to `longest` where that is given."""

    def __init__(self, lengths=(16,), count=64, vocabulary=256, longest=0):
        chance = torch.Generator().manual_seed(2)
        lengths = [lengths[number % len(lengths)] for number in range(count)]
        lengths = [min(length, longest or length) for length in lengths]
        self.rows = [torch.randint(0, vocabulary, (length,), generator=chance) for length in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index]}


def pad(rows):
    """A batch as long as its longest row."""
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": ids, "labels": ids}


def make(model, args, data, cls=Trainer, collator=pad, **more):
    """A trainer that trains in the order of the data, and is quiet."""

    class InOrder(cls):
        def _get_train_sampler(self, *unused):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    trainer = InOrder(model=model, args=args, train_dataset=data, data_collator=collator, **more)
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    return trainer


def leave(mib, which=resource.RLIMIT_DATA):
    """From now on this process may take so many MiB more, of its data (what it can write to) or of all addresses."""
    field = {resource.RLIMIT_DATA: 5, resource.RLIMIT_AS: 0}[which]
    pages = int(Path("/proc/self/statm").read_text().split()[field])
    limit = pages * resource.getpagesize() + mib * MIB
    resource.setrlimit(which, (limit, limit))
