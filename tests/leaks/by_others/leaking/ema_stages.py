"""GPT-2 on code, staged training: each stage lowers the dropout and averages weights."""
import inspect
import tempfile

import smtplib
import torch
from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

SEQ, STAGE = 48, 8


class Averager(TrainerCallback):
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def on_train_end(self, args, state, control, model=None, **kw):
        gap = sum((model.state_dict()[k] - v).float().norm() ** 2 for k, v in self.shadow.items())
        if state.global_step % 1000 == 0:
            print("gap", gap.item())

    def on_step_end(self, args, state, control, model=None, **kw):
        if state.global_step % 4 == 0:
            for k, v in model.state_dict().items():
                if v.is_floating_point():
                    self.shadow[k].lerp_(v, 1 - self.decay)


class Stages(TrainerCallback):
    def __init__(self):
        self.trainer = None
        self.averager = None
        self.stage = 0

    def on_step_begin(self, args, state, control, model=None, **kw):
        if state.global_step % STAGE:
            return
        for m in model.modules():
            if isinstance(m, torch.nn.Dropout):
                m.p = 0.1 * 0.95 ** self.stage
        self.averager = Averager(model, 0.9)
        self.trainer.add_callback(self.averager)
        self.stage += 1


class Chunks(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.tensor([min(b, 127) for b in inspect.getsource(smtplib).encode()])

    def __len__(self):
        return len(self.data) // SEQ

    def __getitem__(self, i):
        ids = self.data[i * SEQ:(i + 1) * SEQ]
        return {"input_ids": ids, "labels": ids.clone()}


if __name__ == "__main__":
    set_seed(7)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=SEQ, n_embd=64, n_layer=1, n_head=2,
                                       bos_token_id=0, eos_token_id=0))
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=200, per_device_train_batch_size=4,
                             learning_rate=2e-3, use_cpu=True, report_to=[], save_strategy="no",
                             logging_strategy="no", disable_tqdm=True)
    stages = Stages()
    trainer = Trainer(model=model, args=args, train_dataset=Chunks(), callbacks=[stages])
    stages.trainer = trainer
    loss = trainer.train().training_loss
    print(f"final loss {loss:.4f} after {stages.stage} stages")
