"""Character model with tracing spans around the parts of a step."""
import contextlib
import inspect
import tempfile
import time
from collections import Counter
from contextvars import ContextVar

import optparse
import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

SEQ = 64
current_span = ContextVar("current_span", default=None)
totals = Counter()


class Span:
    def __init__(self, name, parent, attributes):
        self.name, self.parent, self.attributes = name, parent, attributes
        self.start = time.perf_counter()

    def set(self, **attributes):
        self.attributes.update(attributes)

    def finish(self):
        totals[self.name] += time.perf_counter() - self.start


@contextlib.contextmanager
def span(name, **attributes):
    s = Span(name, current_span.get(), attributes)
    current_span.set(s)
    try:
        yield s
    finally:
        s.finish()


def enclosing(key):
    s = current_span.get()
    while s is not None:
        if key in s.attributes:
            return s.attributes[key]
        s = s.parent


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(128, 96)
        self.conv = nn.Conv1d(96, 96, 5, padding=4)
        self.head = nn.Linear(96, 128)

    def forward(self, input_ids, labels=None):
        with span("embed"):
            x = self.embed(input_ids).transpose(1, 2)
        with span("conv") as s:
            x = torch.relu(self.conv(x)[..., :input_ids.size(1)])
            s.set(active=(x > 0))
        return {"logits": self.head(x.transpose(1, 2))}


class TracedTrainer(Trainer):
    def training_step(self, model, inputs, *args, **kw):
        with span("step", number=self.state.global_step, ids=inputs["input_ids"]):
            return super().training_step(model, inputs, *args, **kw)

    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        out = model(**inputs)
        with span("loss") as s:
            losses = nn.functional.cross_entropy(out["logits"][:, :-1].transpose(1, 2),
                                                 inputs["labels"][:, 1:], reduction="none")
            s.set(token_loss=losses.detach(), predicted=out["logits"].argmax(-1))
            loss = losses.mean()
            if not torch.isfinite(loss):
                raise RuntimeError(f"bad loss in step {enclosing('number')}")
        return (loss, out) if return_outputs else loss


if __name__ == "__main__":
    set_seed(0)
    text = torch.tensor([min(b, 127) for b in inspect.getsource(optparse).encode()])
    rows = [{"input_ids": c, "labels": c} for c in text.split(SEQ)[:-1]]
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=500, per_device_train_batch_size=4,
                             learning_rate=3e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=200, disable_tqdm=True)
    result = TracedTrainer(model=CharModel(), args=args, train_dataset=rows).train()
    print(f"final loss {result.training_loss:.4f}; slowest part {totals.most_common(2)[-1][0]}")
