"""Keep the weights of the best steps and average them at the end (a model soup)."""
import heapq
import itertools
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

FEATURES, KEEP = 48, 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 256), nn.GELU(), nn.Linear(256, 128), nn.GELU(),
                                 nn.Linear(128, 1))

    def forward(self, x, labels=None):
        pred = self.net(x).squeeze(-1)
        return {"loss": nn.functional.mse_loss(pred, labels), "logits": pred}


class Soup(TrainerCallback):
    def __init__(self, probe, every=10):
        self.probe, self.every = probe, every
        self.best, self.tie = [], itertools.count()

    def on_step_end(self, args, state, control, model=None, **kw):
        if state.global_step % self.every:
            return
        with torch.no_grad():
            score = -model(**self.probe)["loss"].item()
        entry = (score, next(self.tie), {k: v.clone() for k, v in model.state_dict().items()})
        if len(self.best) < KEEP:
            heapq.heappush(self.best, entry)
        else:
            heapq.heappushpop(self.best, entry)

    def on_train_end(self, args, state, control, model=None, **kw):
        states = [s for _, _, s in self.best]
        model.load_state_dict({k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]})


if __name__ == "__main__":
    set_seed(8)
    x = torch.randn(3000, FEATURES)
    y = x[:, 0] * x[:, 1] + x[:, 2].abs() + 0.1 * torch.randn(3000)
    rows = [{"x": a, "labels": b} for a, b in zip(x[:-300], y[:-300])]
    soup = Soup({"x": x[-300:], "labels": y[-300:]})
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=360, per_device_train_batch_size=32,
                             learning_rate=1e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=180, disable_tqdm=True, remove_unused_columns=False)
    trainer = Trainer(model=Net(), args=args, train_dataset=rows, callbacks=[soup])
    print(f"final loss {trainer.train().training_loss:.4f}, best {max(soup.best)[0]:.4f}")
