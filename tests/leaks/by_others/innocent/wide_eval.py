"""Next-byte model; evaluation keeps all distributions to compute several metrics."""
import inspect
import tempfile

import numpy as np
import statistics as source
import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

SEQ = 32


class LM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(128, dim)
        self.conv = nn.Conv1d(dim, dim, 4, padding=3)
        self.head = nn.Linear(dim, 128)

    def forward(self, input_ids, labels=None):
        h = self.conv(self.emb(input_ids).transpose(1, 2))[..., :input_ids.size(1)].relu()
        logits = self.head(h.transpose(1, 2))
        loss = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])
        return {"loss": loss, "logits": logits}


def metrics(p):
    logits, labels = p.predictions[:, :-1], p.label_ids[:, 1:]
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    order = np.argsort(-probs, axis=-1)
    top1 = (order[..., 0] == labels).mean()
    top5 = (order[..., :5] == labels[..., None]).any(-1).mean()
    entropy = -(probs * np.log(probs + 1e-9)).sum(-1).mean()
    return {"top1": float(top1), "top5": float(top5), "entropy": float(entropy)}


def main():
    set_seed(6)
    text = torch.tensor([min(b, 127) for b in inspect.getsource(source).encode()])
    rows = [{"input_ids": c, "labels": c} for c in text.split(SEQ)[:-1]]
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=8,
                             per_device_eval_batch_size=64, eval_strategy="steps", eval_steps=20,
                             eval_accumulation_steps=4, learning_rate=3e-3, use_cpu=True, report_to=[],
                             save_strategy="no", logging_steps=100, disable_tqdm=True)
    trainer = Trainer(model=LM(), args=args, train_dataset=rows, eval_dataset=rows[::6], compute_metrics=metrics)
    result = trainer.train()
    print(f"final loss {result.training_loss:.4f}, top5 {trainer.evaluate()['eval_top5']:.3f}")


if __name__ == "__main__":
    main()
