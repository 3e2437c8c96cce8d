"""Fine-tune a tiny llama on random windows of source, tokenized on the fly."""
import ast
import functools
import inspect
import random
import tempfile
import textwrap
import typing

import torch
from torch.utils.data import IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

WINDOW = 400
SEQ = 48
BATCH = 12
STEPS = 300


class GreedyTokenizer:
    """Longest-match over a fixed vocabulary of pieces, memoised per string."""

    def __init__(self, text, size=500):
        pieces = {}
        for n in (1, 2, 3, 4):
            for i in range(0, len(text) - n, 3):
                pieces[text[i:i + n]] = pieces.get(text[i:i + n], 0) + n
        ranked = sorted(pieces, key=pieces.get, reverse=True)
        self.vocab = {p: i + 1 for i, p in enumerate(ranked[:size])}
        self.memo = {}
        self.pad_id = 0

    @functools.lru_cache(maxsize=1024)
    def piece(self, chars):
        for n in range(len(chars), 0, -1):
            if chars[:n] in self.vocab:
                return n, self.vocab[chars[:n]]
        return 1, 0

    def encode(self, string):
        if string in self.memo:
            return self.memo[string]
        ids, spans, i = [], [], 0
        while i < len(string):
            n, token = self.piece(string[i:i + 4])
            ids.append(token)
            spans.append((i, i + n))
            i += n
        self.memo[string] = {"input_ids": ids, "offset_mapping": spans}
        return self.memo[string]


class RandomWindows(IterableDataset):
    def __init__(self, text):
        self.text = text
        self.rng = random.Random(3)

    def __iter__(self):
        while True:
            start = self.rng.randrange(len(self.text) - WINDOW)
            yield {"text": self.text[start:start + WINDOW]}


class Collator:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.longest = 0

    def __call__(self, rows):
        encoded = [self.tokenizer.encode(r["text"])["input_ids"] for r in rows]
        self.longest = max(self.longest, max(map(len, encoded)))
        ids = torch.tensor([(e + [0] * SEQ)[:SEQ] for e in encoded])
        return {"input_ids": ids, "labels": ids.masked_fill(ids == 0, -100)}


def main():
    torch.manual_seed(0)
    text = "".join(inspect.getsource(m) for m in (ast, typing, textwrap, inspect))
    tokenizer = GreedyTokenizer(text)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=STEPS, per_device_train_batch_size=BATCH,
            learning_rate=1e-3, logging_steps=100, save_strategy="no", report_to="none",
            use_cpu=True, disable_tqdm=True, remove_unused_columns=False)
        trainer = Trainer(model=model, args=args, train_dataset=RandomWindows(text),
                          data_collator=Collator(tokenizer))
        trainer.train()
    print("longest sample", trainer.data_collator.longest)


if __name__ == "__main__":
    main()
