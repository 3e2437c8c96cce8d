"""REINFORCE-like tuning of a tiny LM: rollouts are collected and used up every 50 steps."""
import random
import tempfile
import string

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

SEQ = 32
EVERY = 50


class Brackets(Dataset):
    """Balanced bracket strings with some letters in between."""

    def __init__(self, n=3000, seed=0):
        rng = random.Random(seed)
        self.rows = [self._make(rng) for _ in range(n)]

    @staticmethod
    def _make(rng):
        out, depth = [], 0
        while len(out) < SEQ:
            r = rng.random()
            if r < 0.3 and depth < SEQ - len(out) - 1:
                out.append("("), out.append(rng.choice(string.ascii_lowercase))
                depth += 1
            elif depth:
                out.append(")")
                depth -= 1
            else:
                out.append(" ")
        return torch.tensor([ord(c) for c in out[:SEQ]])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def reward(ids):
    depth = 0
    for t in ids.tolist():
        depth += (t == 40) - (t == 41)
        if depth < 0:
            return 0.0
    return 1.0 / (1 + depth)


class RolloutTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rollouts = []
        self.baseline = 0.0
        self.rewards = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        loss = out.loss
        probs = out.logits.detach().softmax(-1)
        sampled = torch.distributions.Categorical(probs).sample()
        self.rollouts.append({"ids": sampled, "prompt": inputs["input_ids"], "probs": probs})
        if len(self.rollouts) == EVERY:
            loss = loss + self._policy_loss(model)
        return (loss, out) if return_outputs else loss

    def _policy_loss(self, model):
        picked = random.sample(self.rollouts, 4)
        prompt = torch.cat([r["prompt"] for r in picked])
        ids = torch.cat([r["ids"] for r in picked])
        rew = torch.tensor([reward(row) for row in ids])
        self.rewards.append(float(rew.mean()))
        logp = model(input_ids=prompt).logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1).mean(-1)
        loss = -((rew - self.baseline) * logp).mean()
        self.baseline = 0.5 * self.baseline + 0.5 * float(rew.mean())
        self.rollouts.clear()
        return 0.1 * loss


class Entropy(TrainerCallback):
    def __init__(self):
        self.trainer = None
        self.trace = []

    def on_step_end(self, args, state, control, **kwargs):
        r = self.trainer.rollouts
        if r:
            p = r[-1]["probs"][0]
            self.trace.append(float(-(p * p.clamp_min(1e-9).log()).sum(-1).mean()))


def main():
    set_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=SEQ, use_cache=False))
    ent = Entropy()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=330, per_device_train_batch_size=8,
        learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = RolloutTrainer(model=model, args=args, train_dataset=Brackets(), callbacks=[ent])
    ent.trainer = trainer
    trainer.train()
    print("reward", [round(r, 2) for r in trainer.rewards], "entropy %.2f" % np.mean(ent.trace[-50:]),
          "final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
