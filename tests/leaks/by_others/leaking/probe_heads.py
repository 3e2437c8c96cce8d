"""BERT-like encoder; while it trains, fresh linear probes ask its layers for the position of a token.

After: https://github.com/huggingface/transformers/pull/45780
"""
import ast
import collections
import difflib
import functools
import inspect
import tempfile
import tokenize

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments, set_seed

LENGTH, HIDDEN, MASK = 48, 64, 128
Reading = collections.namedtuple("Reading", "step layer loss")


class Lines(Dataset):
    def __init__(self):
        text = "".join(inspect.getsource(module) for module in (ast, difflib, tokenize, inspect))
        codes = [min(ord(character), 127) for character in text]
        self.rows = torch.tensor(codes[: len(codes) // LENGTH * LENGTH]).view(-1, LENGTH)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index]}


def mask_some(rows, share=0.15):
    ids = torch.stack([row["input_ids"] for row in rows])
    hidden = torch.rand(ids.shape) < share
    return {"input_ids": ids.masked_fill(hidden, MASK), "labels": ids.masked_fill(~hidden, -100)}


class Probe(nn.Module):
    """A linear map from hidden states to the sine code of their positions."""

    def __init__(self, width, code=256):
        super().__init__()
        self.code = code
        self.map = nn.Linear(width, code)

    @functools.lru_cache(maxsize=None)
    def positions(self, length):
        place = torch.arange(length)[:, None]
        rate = torch.exp(-torch.arange(0, self.code, 2) / self.code * 6)
        return torch.cat([torch.sin(place * rate), torch.cos(place * rate)], dim=1)

    def forward(self, states):
        return nn.functional.mse_loss(self.map(states), self.positions(states.shape[1]).expand(len(states), -1, -1))


class Probing(TrainerCallback):
    """Every other step: a new probe on one of the layers, trained for three steps of its own."""

    def __init__(self, every=2, steps=3):
        self.every, self.steps = every, steps
        self.readings = collections.deque(maxlen=50)
        self.latest = None

    def watch(self, module, args, output):
        self.latest = output[0].detach() if isinstance(output, tuple) else output.detach()

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.handle = None
        if state.global_step % self.every == 0:
            self.layer = state.global_step // self.every % len(model.bert.encoder.layer)
            self.handle = model.bert.encoder.layer[self.layer].register_forward_hook(self.watch)

    def on_step_end(self, args, state, control, **kwargs):
        if self.handle is None:
            return
        self.handle.remove()
        probe = Probe(HIDDEN)
        optimizer = torch.optim.SGD(probe.parameters(), lr=0.5)
        for _ in range(self.steps):
            loss = probe(self.latest)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.readings.append(Reading(state.global_step, self.layer, loss.item()))

    def on_log(self, args, state, control, **kwargs):
        by_layer = collections.defaultdict(list)
        for reading in self.readings:
            by_layer[reading.layer].append(reading.loss)
        print(state.global_step, {layer: round(sum(x) / len(x), 4) for layer, x in sorted(by_layer.items())})


if __name__ == "__main__":
    set_seed(5)
    config = BertConfig(
        vocab_size=MASK + 1, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=LENGTH)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=8, learning_rate=1e-3, use_cpu=True,
        report_to=[], save_strategy="no", logging_steps=80, disable_tqdm=True)
    Trainer(
        BertForMaskedLM(config), arguments, train_dataset=Lines(), data_collator=mask_some, callbacks=[Probing()]
    ).train()
