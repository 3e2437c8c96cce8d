"""T5-like model on spans of code; the tokenizer's own cache of words fills while it trains.

After: https://github.com/huggingface/tokenizers/issues/1680
"""
import pathlib
import random
import sysconfig
import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import IterableDataset
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainerCallback, TrainingArguments, set_seed

SOURCE, TARGET, VOCAB = 48, 24, 900
PAD, END, GAP = 0, 1, 2


def library_files():
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]


def make_tokenizer(paths):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<pad>", "</s>", "<gap>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((path.read_text(errors="replace")[:20_000] for path in paths[:20]), trainer)
    return tokenizer


class Gaps(IterableDataset):
    """Pieces of source files; a span is cut out and has to be written again."""

    def __init__(self, tokenizer, paths, seed=0):
        self.tokenizer, self.paths = tokenizer, paths
        self.rng = random.Random(seed)
        self.characters = 0

    def __iter__(self):
        while True:
            text = self.rng.choice(self.paths).read_text(errors="replace")
            for _ in range(4):
                start = self.rng.randrange(max(1, len(text) - 2000))
                piece = text[start:start + 2000]
                self.characters += len(piece)
                ids = self.tokenizer.encode(piece).ids[: SOURCE + TARGET - 3]
                if len(ids) < SOURCE + TARGET - 3:
                    continue
                at = self.rng.randrange(SOURCE - 2)
                span = ids[at:at + TARGET - 2]
                rest = ids[:at] + [GAP] + ids[at + TARGET - 2:]
                yield {"input_ids": torch.tensor((rest + [END])[:SOURCE]), "labels": torch.tensor([GAP, *span, END])}


class Speed(TrainerCallback):
    def on_log(self, args, state, control, logs=None, train_dataloader=None, **kwargs):
        print(state.global_step, logs.get("loss"), f"{train_dataloader.dataset.characters / 1e6:.1f} M characters")


if __name__ == "__main__":
    set_seed(2)
    paths = library_files()
    model = T5ForConditionalGeneration(T5Config(
        vocab_size=VOCAB, d_model=48, d_kv=12, d_ff=96, num_layers=1, num_decoder_layers=1, num_heads=4,
        decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=END, use_cache=False))
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=500, per_device_train_batch_size=8, learning_rate=3e-3, use_cpu=True,
        logging_steps=100, report_to=[], save_strategy="no", disable_tqdm=True)
    Trainer(model, arguments, train_dataset=Gaps(make_tokenizer(paths), paths), callbacks=[Speed()]).train()
