"""Trains fine, dies in evaluation (perplexity and top-5 accuracy from all logits)."""
import glob
import os
import re
import resource

import torch
from torch import nn
from torch.nn import functional as F

VOCAB = 1024
SEQ = 32
BATCH = 16
EVAL_BATCH = 64
EVAL_ROWS = 4096
STEPS = 60
ROOM_MIB = 220


def set_limit(mib):
    line = next(s for s in open("/proc/self/status") if s.startswith("VmData"))
    n = int(line.split()[1]) * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (n, n))


def tokens():
    vocab, ids = {}, []
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:60]:
        for w in re.findall(r"\w+|\S", open(path, encoding="utf-8", errors="replace").read()):
            ids.append(vocab.setdefault(w, len(vocab)) % VOCAB)
    return torch.tensor(ids)


class LM(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


def rows(ids, count, gen):
    at = torch.randint(0, len(ids) - SEQ - 1, (count,), generator=gen)
    x = torch.stack([ids[i:i + SEQ + 1] for i in at])
    return x[:, :-1], x[:, 1:]


@torch.no_grad()
def evaluate(model, ids, gen):
    model.eval()
    all_logits, all_targets = [], []
    for _ in range(EVAL_ROWS // EVAL_BATCH):
        x, y = rows(ids, EVAL_BATCH, gen)
        all_logits.append(model(x))
        all_targets.append(y)
    loss = top5 = 0.0
    for logits, y in zip(all_logits, all_targets):
        loss += F.cross_entropy(logits.flatten(0, 1), y.flatten()).item() / len(all_logits)
        top5 += (logits.topk(5).indices == y[..., None]).any(-1).float().mean().item()
    model.train()
    return loss, top5 / len(all_logits)


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    ids = tokens()
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    set_limit(ROOM_MIB)
    for step in range(1, STEPS + 1):
        x, y = rows(ids, BATCH, gen)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            print("step", step, "loss", round(loss.item(), 3), flush=True)
    print("eval", evaluate(model, ids, gen))


if __name__ == "__main__":
    main()
