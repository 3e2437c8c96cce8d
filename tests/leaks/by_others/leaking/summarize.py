"""Toy seq2seq with T5: expand abbreviations; the hard cases of the later part are analysed afterwards."""
import builtins
import heapq
import random
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import (Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration,
                          TrainerCallback, set_seed)

WORDS = sorted(w.lower() for w in dir(builtins) if w.isalpha() and 4 <= len(w) <= 14)
PAD, EOS, OFFSET = 0, 1, 2
SRC, TGT = 32, 16


def enc(s, n):
    ids = [ord(c) - ord("a") + OFFSET + 1 if c.isalpha() else OFFSET for c in s][:n - 1] + [EOS]
    return ids + [PAD] * (n - len(ids))


class Pairs(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            ws = rng.sample(WORDS, 3)
            self.rows.append((" ".join(ws), "".join(w[0] for w in ws) + " " + ws[0][::-1][:8]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        s, t = self.rows[i]
        src, tgt = torch.tensor(enc(s, SRC)), torch.tensor(enc(t, TGT))
        return {"input_ids": src, "attention_mask": (src != PAD).long(), "labels": tgt.masked_fill(tgt == PAD, -100)}


class CaseTrainer(Seq2SeqTrainer):
    def __init__(self, *args, analyse_from=120, **kwargs):
        super().__init__(*args, **kwargs)
        self.analyse_from = analyse_from
        self.level = None
        self.hard_cases = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        analyse = model.training and self.state.global_step >= self.analyse_from
        out = model(**inputs, output_hidden_states=analyse)
        loss = out.loss
        if model.training:
            now = loss.item()
            self.level = now if self.level is None else 0.9 * self.level + 0.1 * now
            if analyse and now > self.level:
                case = (now, self.state.global_step, inputs["input_ids"].clone(),
                        out.encoder_last_hidden_state.detach().numpy(), out.logits.detach().numpy())
                heapq.heappush(self.hard_cases, case)
        return (loss, out) if return_outputs else loss


class Forcing(TrainerCallback):
    """Less dropout towards the end."""

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        p = 0.1 * (1 - state.global_step / args.max_steps)
        for m in model.modules():
            if isinstance(m, torch.nn.Dropout):
                m.p = p


def exact(p):
    pred = np.where(p.predictions < 0, PAD, p.predictions)[:, 1:]
    ref = np.where(p.label_ids == -100, PAD, p.label_ids)
    n = min(pred.shape[1], ref.shape[1])
    return {"char_acc": float((pred[:, :n] == ref[:, :n])[ref[:, :n] != PAD].mean())}


def main():
    set_seed(0)
    model = T5ForConditionalGeneration(T5Config(
        vocab_size=40, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=4, pad_token_id=PAD,
        eos_token_id=EOS, decoder_start_token_id=PAD))
    args = Seq2SeqTrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=400, per_device_train_batch_size=16,
        per_device_eval_batch_size=16, eval_strategy="steps", eval_steps=100, predict_with_generate=True,
        generation_max_length=TGT, learning_rate=3e-3, logging_steps=50, report_to=[], save_strategy="no",
        disable_tqdm=True)
    trainer = CaseTrainer(model=model, args=args, train_dataset=Pairs(3000, 0), eval_dataset=Pairs(32, 1),
                          compute_metrics=exact, callbacks=[Forcing()])
    trainer.train()
    worst = heapq.nlargest(3, trainer.hard_cases, key=lambda c: c[0])
    spread = [round(float(c[3].std()), 3) for c in worst]
    print("spread of hard cases", spread, "final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
