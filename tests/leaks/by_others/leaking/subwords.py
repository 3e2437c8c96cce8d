"""LM on code with a hand-rolled subword tokenizer, random crops, and a token-frequency report."""
import collections
import functools
import glob
import os
import random
import re
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

MAXLEN = 64
CROP = 600


class WordPiece:
    pat = re.compile(r"\w+|\s+|[^\w\s]")

    def __init__(self, text, size=200):
        words = collections.Counter(self.pat.findall(text))
        chars = sorted({c for c in text})
        self.vocab = {"<unk>": 0, "<pad>": 1}
        for w in chars + [w for w, _ in words.most_common(size)]:
            self.vocab.setdefault(w, len(self.vocab))

    def __len__(self):
        return len(self.vocab)

    @functools.lru_cache(maxsize=None)
    def encode(self, text):
        out = []
        for w in self.pat.findall(text):
            if w in self.vocab:
                out.append(self.vocab[w])
            else:
                out.extend(self.vocab.get(c, 0) for c in w)
        return tuple(out)


class Crops(Dataset):
    def __init__(self, text, tok, n=4000):
        self.text, self.tok, self.n = text, tok, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        s = random.randrange(len(self.text) - CROP)
        return {"ids": self.tok.encode(self.text[s:s + CROP])}


class PadCollator:
    def __init__(self, pad):
        self.pad = pad
        self.lengths = collections.deque(maxlen=400)

    def __call__(self, rows):
        self.lengths.extend(len(r["ids"]) for r in rows)
        ids = torch.full((len(rows), MAXLEN), self.pad)
        for k, r in enumerate(rows):
            part = torch.tensor(r["ids"][:MAXLEN])
            ids[k, :len(part)] = part
        labels = ids.masked_fill(ids == self.pad, -100)
        return {"input_ids": ids, "attention_mask": (ids != self.pad).long(), "labels": labels}


class TokenReport(TrainerCallback):
    def __init__(self, tok, collator):
        self.tok, self.collator = tok, collator

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and self.collator.lengths:
            logs["mean_len"] = round(sum(self.collator.lengths) / len(self.collator.lengths), 1)


def main():
    random.seed(5)
    torch.manual_seed(5)
    files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "[a-h]*.py")))
    text = "\n".join(open(f, encoding="utf-8", errors="ignore").read() for f in files)[:1_500_000]
    text = text.encode("ascii", "ignore").decode()
    tok = WordPiece(text)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=MAXLEN, pad_token_id=1,
        use_cache=False))
    collator = PadCollator(tok.vocab["<pad>"])
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=400, per_device_train_batch_size=12,
        learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False, warmup_steps=20)
    trainer = Trainer(model=model, args=args, train_dataset=Crops(text, tok), data_collator=collator,
                      callbacks=[TokenReport(tok, collator)])
    trainer.train()
    print("final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
