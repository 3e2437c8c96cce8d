"""Metric learning with nearest-neighbour negatives from an on-disk shard of embeddings."""
import os
import tempfile
import weakref

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

DIM, POINTS = 16, 1500


class Shard:
    def __init__(self, folder, name, vectors):
        self.path = os.path.join(folder, f"{name}.npy")
        np.save(self.path, vectors)
        self.order = np.argsort(vectors, axis=0).astype(np.int32)
        self.norms = (vectors ** 2).sum(1)
        self._finalizer = weakref.finalize(self, self.remove, self.path)

    def remove(self, path):
        if os.path.exists(path):
            os.unlink(path)

    def vectors(self):
        return np.load(self.path, mmap_mode="r")

    def nearest(self, queries):
        vectors = self.vectors()
        axis = int(np.abs(queries).mean(0).argmax())
        ranked = self.order[:, axis]
        near = ranked[np.searchsorted(vectors[ranked, axis], queries[:, axis]).clip(0, len(ranked) - 1)]
        return np.array(vectors[near])


class Refresh(TrainerCallback):
    def __init__(self, folder, data, every=3, first=40):
        self.folder, self.data, self.every, self.first = folder, data, every, first
        self.shard = None

    def on_step_begin(self, args, state, control, model=None, **kw):
        if state.global_step >= self.first and state.global_step % self.every == 0:
            with torch.no_grad():
                vectors = model.net(self.data).numpy()
            self.shard = Shard(self.folder, f"shard-{state.global_step}", vectors)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, DIM))

    def forward(self, x, positive):
        return {"anchor": self.net(x), "positive": self.net(positive)}


class TripletTrainer(Trainer):
    refresh = None

    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        out = model(**inputs)
        if self.refresh.shard is None:
            negative = out["positive"].roll(1, 0).detach()
        else:
            negative = torch.from_numpy(self.refresh.shard.nearest(out["anchor"].detach().numpy()))
        loss = nn.functional.triplet_margin_loss(out["anchor"], out["positive"], negative)
        return (loss, out) if return_outputs else loss


if __name__ == "__main__":
    set_seed(21)
    x = torch.randn(POINTS, 20)
    rows = [{"x": a, "positive": a + 0.1 * torch.randn(20)} for a in x]
    with tempfile.TemporaryDirectory() as folder:
        refresh = Refresh(folder, x)
        args = TrainingArguments(output_dir=folder, max_steps=300, per_device_train_batch_size=32,
                                 learning_rate=1e-3, use_cpu=True, report_to=[], save_strategy="no",
                                 logging_steps=150, disable_tqdm=True, remove_unused_columns=False)
        trainer = TripletTrainer(model=Encoder(), args=args, train_dataset=rows, callbacks=[refresh])
        trainer.refresh = refresh
        print(f"final loss {trainer.train().training_loss:.4f}")
