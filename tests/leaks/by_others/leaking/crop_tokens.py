"""GPT-2 on random crops of documents, with a small BPE that is trained on the spot.

After: https://github.com/huggingface/tokenizers/issues/1495
"""
import email.message
import http.client
import inspect
import logging
import random
import tarfile
import tempfile
import zipfile

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

logger = logging.getLogger("crops")
LENGTH = 64
SOURCES = (tarfile, zipfile, http.client, email.message)


def train_tokenizer(documents, size=700):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        documents, trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>", "<pad>"], show_progress=False))
    return tokenizer


class Documents(Dataset):
    """A crop begins at a random line, so that an epoch shows each document from another place."""

    def __init__(self, documents, crops_per_document=400, characters=1500):
        self.lines = [document.splitlines(keepends=True) for document in documents]
        self.crops_per_document = crops_per_document
        self.characters = characters
        self.rng = random.Random(0)

    def __len__(self):
        return len(self.lines) * self.crops_per_document

    def __getitem__(self, index):
        lines = self.lines[index % len(self.lines)]
        start = self.rng.randrange(len(lines) - 60)
        indent = self.rng.choice(("", "    ", "\t"))
        return indent + "".join(lines[start:start + 60])[: self.characters]


class Encode:
    """Strings to a batch. Tokenizing is slow, so what was seen is looked up."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.encoded = {}
        self.hits = self.calls = 0

    def ids(self, text):
        self.calls += 1
        if text in self.encoded:
            self.hits += 1
        else:
            self.encoded[text] = self.tokenizer.encode(text).ids
        return self.encoded[text]

    def __call__(self, texts):
        batch = torch.ones(len(texts), LENGTH, dtype=torch.long)
        mask = torch.zeros_like(batch)
        for row, text in enumerate(texts):
            ids = self.ids(text)[:LENGTH]
            batch[row, :len(ids)] = torch.tensor(ids)
            mask[row, :len(ids)] = 1
        return {"input_ids": batch, "attention_mask": mask, "labels": batch.masked_fill(mask == 0, -100)}


class Samples(TrainerCallback):
    """Shows now and then what the model writes."""

    def __init__(self, tokenizer, every=200):
        self.tokenizer, self.every = tokenizer, every

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every == 0:
            start = torch.tensor([self.tokenizer.encode("def ").ids])
            written = model.generate(start, max_new_tokens=8, do_sample=True, pad_token_id=1)
            logger.info("step %d: %r", state.global_step, self.tokenizer.decode(written[0].tolist()))
            model.train()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    set_seed(11)
    documents = [inspect.getsource(module) for module in SOURCES]
    tokenizer = train_tokenizer(documents)
    encode = Encode(tokenizer)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_positions=LENGTH + 16, n_embd=48, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=1))
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=8, learning_rate=3e-3, use_cpu=True,
        lr_scheduler_type="cosine", logging_steps=100, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False)
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Documents(documents), data_collator=encode,
        callbacks=[Samples(tokenizer)])
    trainer.train()
    logger.info("%d of %d crops were known", encode.hits, encode.calls)
