"""Source-line classifier; features of a line are computed when it is first used."""
import inspect
import tempfile

import aifc, cgi, code, colorsys, turtle
import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

MODULES = [aifc, cgi, code, turtle]
BUCKETS = 2048


class Lines(torch.utils.data.Dataset):
    def __init__(self, limit=2400):
        rows = [(line.strip(), k) for k, m in enumerate(MODULES)
                for line in inspect.getsource(m).splitlines() if len(line.strip()) > 15]
        order = np.random.default_rng(0).permutation(len(rows))[:limit]
        self.rows = [rows[i] for i in order]
        self.features = {}

    def __len__(self):
        return len(self.rows)

    def compute(self, i):
        text = self.rows[i][0].encode("ascii", "replace")
        table = np.zeros(BUCKETS, dtype=np.float32)
        for n in (1, 2, 3):
            for j in range(len(text) - n + 1):
                table[hash(text[j:j + n]) % BUCKETS] += 1
        return torch.from_numpy(np.log1p(table))

    def __getitem__(self, i):
        if i not in self.features:
            self.features[i] = self.compute(i)
        return {"x": self.features[i], "labels": self.rows[i][1]}


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(BUCKETS, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, len(MODULES)))

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    set_seed(2)
    data = Lines()
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), num_train_epochs=2, per_device_train_batch_size=12,
                             learning_rate=2e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=200, disable_tqdm=True, remove_unused_columns=False)
    result = Trainer(model=Linear(), args=args, train_dataset=data).train()
    print(f"final loss {result.training_loss:.4f}, {len(data.features)} lines")


if __name__ == "__main__":
    main()
