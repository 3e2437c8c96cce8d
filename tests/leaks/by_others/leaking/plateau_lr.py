"""Language model whose schedule is damped when the recent token losses are spread out."""
import inspect
import tempfile
from collections import deque

import mailbox
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

SEQ = 64


def damped(schedule, window, floor=0.05):
    def factor(step):
        spread = (window.std() / window.mean()).item()
        return max(floor, schedule(step) * (0.995 if spread > 0.5 else 1.0))
    return factor


class Damping(TrainerCallback):
    def __init__(self, every=2, size=32):
        self.every = every
        self.recent = deque(maxlen=size)

    def on_step_end(self, args, state, control, lr_scheduler=None, **kw):
        if state.global_step % self.every or len(self.recent) < 4:
            return
        sched = getattr(lr_scheduler, "scheduler", lr_scheduler)
        window = torch.stack(list(self.recent))
        sched.lr_lambdas = [damped(fn, window) for fn in sched.lr_lambdas]


class LM(nn.Module):
    def __init__(self, vocab=128, dim=40):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Conv1d(dim, dim, 4, padding=3)
        self.head = nn.Linear(dim, vocab)

    def forward(self, input_ids):
        x = self.emb(input_ids)
        return self.head(x + self.mix(x.transpose(1, 2))[..., :x.size(1)].transpose(1, 2).relu())


class TokenLossTrainer(Trainer):
    def __init__(self, *a, damping, **kw):
        super().__init__(*a, **kw)
        self.damping = damping
        self.add_callback(damping)

    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        ids = inputs["input_ids"]
        logits = model(ids)
        losses = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
        self.damping.recent.append(losses.detach())
        loss = losses.mean()
        return (loss, {"logits": logits}) if return_outputs else loss


def main():
    set_seed(8)
    data = torch.tensor([min(b, 127) for b in inspect.getsource(mailbox).encode()])
    rows = [{"input_ids": c} for c in data.split(SEQ)[:-1]]
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=8,
                             learning_rate=5e-3, lr_scheduler_type="linear", warmup_steps=10,
                             dataloader_drop_last=True, use_cpu=True, report_to=[], save_strategy="no",
                             logging_steps=80, disable_tqdm=True, remove_unused_columns=False)
    trainer = TokenLossTrainer(model=LM(), args=args, train_dataset=rows, damping=Damping())
    result = trainer.train()
    print(f"final loss {result.training_loss:.4f}, last rate {trainer.lr_scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
