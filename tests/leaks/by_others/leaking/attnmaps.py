"""Watch how the attention heads specialise: entropy per head and drift between evaluations."""
import inspect
import logging
import tempfile
import unittest.mock

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

log = logging.getLogger("heads")
LEN = 64


class Lines(Dataset):
    def __init__(self, src, start, stop):
        raw = src.encode()
        self.rows = [torch.tensor(list(raw[i:i + LEN])) for i in range(0, len(raw) - LEN, LEN)][start:stop]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def head_entropy(att):
    # att: layers, batch, heads, query, key
    return -(att.clamp_min(1e-9).log() * att).sum(-1).mean(dim=(1, 3))


def make_inspector(probe):
    maps = {}

    @torch.no_grad()
    def inspect_heads(model, step):
        was = model.training
        model.eval()
        att = torch.stack(model(input_ids=probe, output_attentions=True).attentions)
        model.train(was)
        maps[step] = att
        ent = head_entropy(att)
        steps = sorted(maps)
        drift = 0.0
        if len(steps) > 1:
            drift = (maps[steps[-1]] - maps[steps[-2]]).abs().mean().item()
        return ent, drift

    return inspect_heads


class HeadCallback(TrainerCallback):
    def __init__(self, inspector):
        self.inspector = inspector
        self.lowest = None
        self.drift = 0.0

    def on_evaluate(self, args, state, control, model=None, metrics=None, **kwargs):
        ent, drift = self.inspector(model, state.global_step)
        layer, head = divmod(int(ent.argmin()), ent.size(1))
        self.lowest = (layer, head, float(ent.min()))
        self.drift = 0.5 * self.drift + 0.5 * drift
        log.info("step %d eval %.3f sharpest head %s", state.global_step, metrics["eval_loss"], self.lowest)


def main():
    set_seed(11)
    src = inspect.getsource(unittest.mock)
    train, val = Lines(src, 0, 1200), Lines(src, 1200, 1232)
    model = LlamaForCausalLM._from_config(
        LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=LEN, use_cache=False),
        attn_implementation="eager")
    probe = torch.stack([val[i]["input_ids"] for i in range(8)])
    heads = HeadCallback(make_inspector(probe))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=300, per_device_train_batch_size=8,
        per_device_eval_batch_size=16, eval_strategy="steps", eval_steps=10, logging_steps=50,
        learning_rate=1e-3, report_to=[], save_strategy="no", disable_tqdm=True,
        prediction_loss_only=True)
    trainer = Trainer(model=model, args=args, train_dataset=train, eval_dataset=val, callbacks=[heads])
    trainer.train()
    print("sharpest", heads.lowest, "drift", round(heads.drift, 5), "final loss",
          [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
