"""Word vectors by skip-grams; words get their numbers when they are met for the first time.

After: https://github.com/huggingface/tokenizers/issues/1539
"""
import collections
import pathlib
import random
import re
import sys
import sysconfig
import tempfile

import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

SPACE, WINDOW = 4096, 3


class Vocabulary:
    """Words to numbers; interned, so that equal words are one object. Rare ones share a number."""

    def __init__(self):
        self.numbers = {}
        self.counts = collections.Counter()

    def __call__(self, word):
        word = sys.intern(word)
        self.counts[word] += 1
        number = self.numbers.get(word)
        if number is None:
            number = self.numbers[word] = len(self.numbers) if len(self.numbers) < SPACE else hash(word) % SPACE
        return number


class SkipGrams(IterableDataset):
    """Around and around over some packages, in another order each time."""

    def __init__(self, vocabulary, folders=("asyncio", "email", "unittest", "logging", "xml", "http")):
        library = pathlib.Path(sysconfig.get_paths()["stdlib"])
        self.paths = [path for folder in folders for path in sorted((library / folder).rglob("*.py"))]
        self.vocabulary = vocabulary
        self.rng = random.Random(0)

    def __iter__(self):
        while True:
            self.rng.shuffle(self.paths)
            for path in self.paths:
                words = re.findall(r"[A-Za-z_]\w+", path.read_text(encoding="utf-8", errors="replace"))
                numbers = [self.vocabulary(word) for word in words]
                for place in range(WINDOW, len(numbers) - WINDOW, 2):
                    around = self.rng.choice((-3, -2, -1, 1, 2, 3))
                    yield {"word": numbers[place], "labels": numbers[place + around]}


class Vectors(nn.Module):
    def __init__(self, width=64, negatives=32):
        super().__init__()
        self.inner = nn.Embedding(SPACE, width)
        self.outer = nn.Embedding(SPACE, width)
        self.negatives = negatives

    def forward(self, word, labels=None):
        center = self.inner(word)
        good = (center * self.outer(labels)).sum(-1)
        bad = center @ self.outer(torch.randint(SPACE, (self.negatives,))).T
        loss = nn.functional.softplus(-good).mean() + nn.functional.softplus(bad).mean()
        return {"loss": loss, "good": good}


class Words(TrainerCallback):
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        words, numbers = zip(*list(self.vocabulary.numbers.items())[:800])
        weights = nn.functional.normalize(model.inner.weight.detach()[list(numbers)], dim=-1)
        like = {word: words[int((weights @ weights[i]).topk(2).indices[1])] for i, word in enumerate(words[:4])}
        print(state.global_step, logs.get("loss"), f"{len(self.vocabulary.numbers)} words", like)


if __name__ == "__main__":
    set_seed(9)
    vocabulary = Vocabulary()
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=600, per_device_train_batch_size=512, learning_rate=1e-2, use_cpu=True,
        logging_steps=100, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False)
    Trainer(Vectors(), arguments, train_dataset=SkipGrams(vocabulary), callbacks=[Words(vocabulary)]).train()
