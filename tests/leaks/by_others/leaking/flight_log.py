"""Sequence labelling with a flight recorder: debug records are written out on an error."""
import io
import logging
import logging.handlers
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

log = logging.getLogger("tagger")
log.setLevel(logging.DEBUG)
log.propagate = False
sink = io.StringIO()


class Recorder(logging.handlers.MemoryHandler):
    def shouldFlush(self, record):
        return record.levelno >= self.flushLevel


def setup_logging():
    target = logging.StreamHandler(sink)
    target.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    recorder = Recorder(capacity=40, flushLevel=logging.ERROR, target=target)
    log.addHandler(recorder)
    return recorder


class Parity(torch.utils.data.IterableDataset):
    def __init__(self, length=32):
        self.length = length

    def __iter__(self):
        g = torch.Generator().manual_seed(9)
        while True:
            bits = torch.randint(0, 2, (self.length,), generator=g)
            yield {"bits": bits, "labels": bits.cumsum(0) % 2}


class Recurrent(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.emb = nn.Embedding(2, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, 2)

    def forward(self, bits, labels=None):
        hidden, (last, _) = self.rnn(self.emb(bits))
        logits = self.head(hidden)
        log.debug("hidden %s last %s", hidden.detach(), last.detach())
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), labels)
        return {"loss": loss, "logits": logits}


class LoggedTrainer(Trainer):
    def training_step(self, model, inputs, *args, **kw):
        log.debug("step %d starts", self.state.global_step)
        loss = super().training_step(model, inputs, *args, **kw)
        norms = {n: p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None}
        log.debug("gradient norms %s", norms)
        if not torch.isfinite(loss):
            log.error("loss is %s in step %d", loss, self.state.global_step)
        return loss


def main():
    set_seed(6)
    recorder = setup_logging()
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=16,
                             learning_rate=5e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=150, disable_tqdm=True, remove_unused_columns=False)
    result = LoggedTrainer(model=Recurrent(), args=args, train_dataset=Parity()).train()
    log.removeHandler(recorder)
    recorder.setTarget(None)
    print(f"final loss {result.training_loss:.4f}, {len(sink.getvalue())} characters of errors")


if __name__ == "__main__":
    main()
