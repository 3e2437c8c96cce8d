"""Run by test_trainings.py, plainly and watched: `train.py MODE FOLDER`. What it prints is the same both times."""

# ruff: noqa: E402
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

# Looking is not importing yet: the hook has to wait for that
assert importlib.util.find_spec("transformers.trainer") is not None

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from tests.training import Tokens, fingerprint, make_trainer, tiny_model

MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
START = os.getcwd()
DISTRIBUTED: dict[str, Any] = (
    {}
    if "RANK" not in os.environ
    else {"ddp_backend": "gloo", "ddp_find_unused_parameters": False, "dataloader_pin_memory": False}
)


class UsersTrainer(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if "raises" in MODE and self.state.global_step == 2:
            raise RuntimeError("the users own error")
        return super().compute_loss(model, inputs, *args, **kwargs)


class TellsSteps(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        print(f"step {state.global_step}", flush=True)
        time.sleep(0.003)


def trainings() -> None:
    """A Trainer of transformers, a user's own, and another of its subclasses; the last one may raise."""
    first = make_trainer(FOLDER / "first", eval_strategy="steps", eval_steps=3)
    first.train()
    print(fingerprint(first), [type(callback).__name__ for callback in first.callback_handler.callbacks][:1])
    settings = Seq2SeqTrainingArguments(
        str(FOLDER / "second"), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True
    )
    second = Seq2SeqTrainer(tiny_model(), settings, train_dataset=Tokens())
    second.remove_callback(PrinterCallback)  # it prints times
    second.train()
    print(fingerprint(second))
    make_trainer(FOLDER / "third", trainer_class=UsersTrainer, save_steps=2, save_strategy="steps").train()


def own() -> None:
    """A script that watches itself, by `attach`, which gives reports to print, and then by a callback in its list."""
    from forgather_mem import attach, load_callbacks

    for name, template in (("attached", "callbacks/watch.yaml"), ("other", "callbacks/memory.yaml"), ("listed", "")):
        callbacks = [] if template else load_callbacks("callbacks/watch.yaml")
        trainer = make_trainer(FOLDER / name, callbacks, logging_strategy="no")
        handles = [attach(trainer, template), attach(trainer, template)] if template else []
        trainer.train()
        known = [type(callback).__name__ for callback in trainer.callback_handler.callbacks]
        print(name, known.count("MemoryCallback"), len(set(map(id, handles))), trainer.state.global_step)
        if handles:
            os.chdir("..")  # scripts do
            print(handles[0].report())
            os.chdir(START)


def empty() -> None:
    trainer = make_trainer(FOLDER / "out")
    trainer.train_dataset = []
    trainer.train()  # raises before its callbacks hear of it


def ranks() -> None:
    trainer = make_trainer(FOLDER / "out", disable_tqdm=True, logging_strategy="no", **DISTRIBUTED)
    trainer.train()
    if trainer.args.process_index == 0:
        print(fingerprint(trainer)[0], trainer.args.world_size)
    if torch.distributed.is_initialized():  # a rank that leaves first may break the other's connection
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def long() -> None:
    make_trainer(
        FOLDER / "out", [TellsSteps()], max_steps=100_000, logging_strategy="no", save_strategy="steps", save_steps=7,
        save_total_limit=1, disable_tqdm=True,
    ).train()  # fmt: skip


def short() -> None:
    trainer = make_trainer(FOLDER / "out", logging_strategy="no")
    trainer.train()
    # Behind the one of transformers and the one that brings the others
    print([type(callback).__name__ for callback in trainer.callback_handler.callbacks][2:])
    print(fingerprint(trainer)[0], trainer.args.world_size)


def trl() -> None:
    import pyarrow
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {word: number for number, word in enumerate(["<pad>", "<eos>", *map(str, range(60))])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="<eos>"
    )
    rows = pyarrow.table({"input_ids": [[2 + (row + i) % 60 for i in range(12)] for row in range(16)]})
    # With a fingerprint of its own: making one fails with some versions of pyarrow and dill
    dataset = Dataset(InMemoryTable(rows), fingerprint="rows")
    settings = SFTConfig(
        str(FOLDER / "out"), max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True, bf16=False,
        disable_tqdm=True, gradient_checkpointing=False,
        dataset_kwargs={"skip_prepare_dataset": True}, logging_strategy="no", save_strategy="no",
    )  # fmt: skip
    trainer = SFTTrainer(tiny_model(), settings, train_dataset=dataset, processing_class=tokenizer)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(fingerprint(trainer)[0])


if __name__ == "__main__":
    {"raises": trainings, "own": own, "empty": empty, "short": short, "ranks": ranks, "long": long, "trl": trl}[MODE]()
