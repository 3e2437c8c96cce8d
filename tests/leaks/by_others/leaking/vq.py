"""VQ autoencoder; dead codes are re-seeded from the current batch."""
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(0)


class Patches(Dataset):
    def __init__(self, n=4000, dim=64):
        centers = torch.randn(40, dim)
        self.x = centers[torch.randint(0, 40, (n,))] + 0.3 * torch.randn(n, dim)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i]}


class VQ(nn.Module):
    def __init__(self, dim=64, codes=256, width=64, beta=0.25):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, width))
        self.dec = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, dim))
        self.codebook = nn.Parameter(torch.randn(codes, width) * 0.5)
        self.register_buffer("usage", torch.zeros(codes))
        self.beta = beta
        self.last_z = None

    def forward(self, x):
        z = self.enc(x)
        idx = torch.cdist(z.detach(), self.codebook.detach()).argmin(1)
        q = self.codebook[idx]
        commit = F.mse_loss(q.detach(), z)
        book = F.mse_loss(q, z.detach())
        rec = self.dec(z + (q - z).detach())
        if self.training:
            self.usage.mul_(0.95).index_add_(0, idx, torch.ones(len(idx)))
            self.last_z = z.detach()
        return {"loss": F.mse_loss(rec, x) + book + self.beta * commit, "rec": rec}


class ReseedDeadCodes(TrainerCallback):
    def __init__(self, every=5, threshold=0.05):
        self.every = every
        self.threshold = threshold
        self.reseeded = 0

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step % self.every:
            return
        dead = (model.usage < self.threshold).nonzero().flatten()
        if len(dead) == 0:
            return
        new = model.codebook.detach().clone()
        pick = torch.randint(0, len(model.last_z), (len(dead),))
        new[dead] = model.last_z[pick] + 0.01 * torch.randn(len(dead), new.size(1))
        self.reseeded += len(dead)
        # fresh parameter so that the stale Adam moments are not applied to the new codes
        group = next(g for g in optimizer.param_groups if any(p is model.codebook for p in g["params"]))
        model.codebook = nn.Parameter(new)
        group["params"].append(model.codebook)


class Perplexity(TrainerCallback):
    def __init__(self):
        self.trace = []

    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        p = model.usage / model.usage.sum().clamp_min(1e-6)
        ppl = float((-(p * (p + 1e-9).log()).sum()).exp())
        self.trace.append(round(ppl, 1))
        if logs is not None:
            logs["ppl"] = self.trace[-1]


reseed = ReseedDeadCodes()
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=300, per_device_train_batch_size=32,
    learning_rate=1e-3, lr_scheduler_type="constant_with_warmup", warmup_steps=20, logging_steps=50,
    report_to=[], save_strategy="no", remove_unused_columns=False, disable_tqdm=True, max_grad_norm=0.0)
trainer = Trainer(model=VQ(), args=args, train_dataset=Patches(), callbacks=[reseed, Perplexity()])
trainer.train()
print("reseeded", reseed.reseeded, "final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])
