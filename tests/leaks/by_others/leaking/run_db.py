"""Tagger on code tokens; step records go to a small in-memory database for queries."""
import io
import keyword
import sqlite3
import tempfile
import tokenize

import inspect
import imaplib
import torch
from transformers import (BertConfig, BertForTokenClassification, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

SEQ = 64


class RunStore:
    def __init__(self):
        self.db = sqlite3.connect(":memory:")
        self.db.execute("CREATE TABLE steps (step INTEGER PRIMARY KEY, loss REAL, lr REAL)")
        self.db.execute("CREATE TABLE outputs (step INTEGER, probs BLOB)")

    def add_step(self, step, loss, lr):
        self.db.execute("INSERT OR REPLACE INTO steps VALUES (?, ?, ?)", (step, loss, lr))

    def add_output(self, step, probs):
        self.db.execute("INSERT INTO outputs VALUES (?, ?)", (step, probs.numpy().tobytes()))
        self.db.commit()

    def drift(self, shape):
        rows = self.db.execute("SELECT probs FROM outputs ORDER BY step DESC LIMIT 2").fetchall()
        a, b = (torch.frombuffer(bytearray(r[0]), dtype=torch.float32).view(shape) for r in rows)
        return (a.mean((0, 1)) - b.mean((0, 1))).abs().sum().item()

    def best(self):
        return self.db.execute("SELECT step, MIN(loss) FROM steps").fetchone()


def tagged(source):
    ids, tags = [], []
    for tok in tokenize.generate_tokens(io.StringIO(source).readline):
        ids.append(hash(tok.string) % 500)
        tags.append(3 if keyword.iskeyword(tok.string) else min(tok.type, 2))
    return [{"input_ids": torch.tensor(ids[i:i + SEQ]), "labels": torch.tensor(tags[i:i + SEQ])}
            for i in range(0, len(ids) - SEQ, SEQ)]


class Tagger(Trainer):
    store = None

    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        loss, out = super().compute_loss(model, inputs, return_outputs=True, **kw)
        self.store.add_output(self.state.global_step, out["logits"].detach().softmax(-1))
        self.store.add_step(self.state.global_step, loss.item(), self._get_learning_rate())
        return (loss, out) if return_outputs else loss


class Drift(TrainerCallback):
    def __init__(self, store):
        self.store, self.worst = store, 0.0

    def on_step_end(self, args, state, control, **kw):
        if state.global_step > 2:
            self.worst = max(self.worst, self.store.drift((16, SEQ, 6)))


if __name__ == "__main__":
    set_seed(4)
    store = RunStore()
    cfg = BertConfig(vocab_size=500, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                     intermediate_size=64, max_position_embeddings=SEQ, num_labels=6)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=250, per_device_train_batch_size=16,
                             learning_rate=2e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=125, disable_tqdm=True, dataloader_drop_last=True)
    trainer = Tagger(model=BertForTokenClassification(cfg), args=args,
                     train_dataset=tagged(inspect.getsource(imaplib)), callbacks=[Drift(store)])
    trainer.store = store
    result = trainer.train()
    print(f"final loss {result.training_loss:.4f}, best step {store.best()}")
