"""Gradual unfreezing of a BERT, top layers first, with a per-layer gradient noise estimate."""
import email._header_value_parser as hvp
import inspect
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments, set_seed

SEQ, MASK = 48, 256


class MaskedBytes(Dataset):
    def __init__(self, source, p=0.15):
        raw = torch.tensor(list(source.encode()))
        self.rows = raw[:len(raw) // SEQ * SEQ].view(-1, SEQ)
        self.p = p

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids = self.rows[i]
        hide = torch.rand(SEQ) < self.p
        hide[0] = True
        return {"input_ids": ids.masked_fill(hide, MASK), "labels": ids.masked_fill(~hide, -100)}


class Unfreeze(TrainerCallback):
    def __init__(self, every=30):
        self.every = every

    def blocks(self, model):
        layers = list(model.bert.encoder.layer)
        return layers[::-1] + [model.bert.embeddings]

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        for b in self.blocks(model):
            b.requires_grad_(False)

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        stage, rest = divmod(state.global_step, self.every)
        blocks = self.blocks(model)
        if rest == 0 and 0 < stage <= len(blocks):
            blocks[stage - 1].requires_grad_(True)


class NoiseScale(TrainerCallback):
    """Running mean and variance of the gradient of each parameter."""

    def __init__(self, beta=0.98):
        self.beta = beta
        self.mean, self.sq = {}, {}

    @torch.no_grad()
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for n, p in model.named_parameters():
            if p.grad is None:
                continue
            if n not in self.mean:
                self.mean[n], self.sq[n] = torch.zeros_like(p), torch.zeros_like(p)
            self.mean[n].lerp_(p.grad, 1 - self.beta)
            self.sq[n].lerp_(p.grad ** 2, 1 - self.beta)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and self.mean:
            signal = sum(float((m ** 2).sum()) for m in self.mean.values())
            total = sum(float(s.sum()) for s in self.sq.values())
            logs["noise"] = round((total - signal) / max(signal, 1e-12), 2)
            logs["tracked"] = len(self.mean)


def main():
    set_seed(13)
    model = BertForMaskedLM(BertConfig(
        vocab_size=257, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=SEQ))
    noise = NoiseScale()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=400, per_device_train_batch_size=6,
        learning_rate=1e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = Trainer(model=model, args=args, train_dataset=MaskedBytes(inspect.getsource(hvp)),
                      callbacks=[Unfreeze(), noise])
    trainer.train()
    print("final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
