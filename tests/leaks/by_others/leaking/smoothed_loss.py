"""Small transformer encoder trained with a moving baseline that scales hard batches."""
import inspect
import tempfile

import ftplib
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

SEQ, MASK = 32, 127


class MaskedLM(nn.Module):
    def __init__(self, dim=32, layers=3):
        super().__init__()
        self.emb = nn.Embedding(128, dim)
        self.pos = nn.Parameter(torch.zeros(SEQ, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 128)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.body(self.emb(input_ids) + self.pos))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class BaselineTrainer(Trainer):
    def __init__(self, *args, momentum=0.98, **kw):
        super().__init__(*args, **kw)
        self.momentum = momentum
        self.baseline = None

    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        loss, out = super().compute_loss(model, inputs, return_outputs=True, **kw)
        if self.baseline is None:
            self.baseline = loss.detach().clone()
        self.baseline = self.momentum * self.baseline + (1 - self.momentum) * loss
        scale = (loss.detach() / self.baseline.detach()).clamp(0.5, 2.0)
        loss = loss * scale
        return (loss, out) if return_outputs else loss


class Report(TrainerCallback):
    def __init__(self):
        self.values = {}

    def on_step_end(self, args, state, control, **kw):
        if state.global_step % 100 == 0:
            self.values[state.global_step] = round(self.trainer.baseline.item(), 3)


def mask(rows):
    ids = torch.stack(rows)
    hidden = torch.rand(ids.shape) < 0.2
    return {"input_ids": ids.masked_fill(hidden, MASK), "labels": ids.masked_fill(~hidden, -100)}


def main():
    set_seed(14)
    text = torch.tensor([min(b, 126) for b in inspect.getsource(ftplib).encode()])
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=250, per_device_train_batch_size=8,
                             learning_rate=2e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=125, disable_tqdm=True, remove_unused_columns=False)
    report = Report()
    report.trainer = BaselineTrainer(model=MaskedLM(), args=args, train_dataset=text.split(SEQ)[:-1],
                                     data_collator=mask, callbacks=[report])
    result = report.trainer.train()
    print(f"final loss {result.training_loss:.4f}, baseline {report.values}")


if __name__ == "__main__":
    main()
