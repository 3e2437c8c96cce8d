"""Trainings in which nothing fails late, each by its name: what looks like it, and what is as usual."""

import collections
import os
import sys

import torch
from common import Rows, accuracy, limit, make, model, options, padded, peak_of, samples
from torch.utils.data import DataLoader

EVERY = {"eval_strategy": "steps", "eval_steps": 5, "max_steps": 10}
EPOCH = {"max_steps": -1, "num_train_epochs": 1}


def trainer(data=None, *, arguments=None, evaluation=1600, net=None, **parts):
    return make(net or model(), data or Rows(64), Rows(evaluation), arguments=arguments, **parts).train


def argmax(logits, labels):
    return logits.argmax(-1)


def batched(prediction, compute_result=False):
    return {"seen": float(len(prediction.predictions))}


class Cached(Rows):
    """Keeps the first 40 rows that it has made, with something large."""

    cache = {}  # noqa: RUF012  # of the script

    def __getitem__(self, index):
        if len(self.cache) < 40:
            self.cache[index] = torch.ones(20_000)
        return super().__getitem__(index)


def cut_in_collator(rows, max_length=128):
    return padded([{"input_ids": row["input_ids"][:max_length]} for row in rows])


def loop(look, *, workers=0, batches=400, every=16):
    """A loop of one's own that evaluates after every few steps; `look(outputs, logits, number)` keeps what it likes."""

    def train():
        net = model()
        optimizer = torch.optim.AdamW(net.parameters())
        for number, batch in enumerate(DataLoader(Rows(128), batch_size=4)):
            net(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if (number + 1) % every == 0:
                net.eval()
                outputs = []
                with torch.no_grad():
                    rows = DataLoader(Rows(4 * batches), batch_size=4, num_workers=workers)
                    for index, seen in enumerate(rows):
                        look(outputs, net(input_ids=seen["input_ids"]).logits, index)
                net.train()

    return train


def lightning(look, evaluated=1600):
    import logging

    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.outputs = model(), []

        def training_step(self, batch, index):
            return self.net(**batch).loss

        def validation_step(self, batch, index):
            look(self.outputs, self.net(input_ids=batch["input_ids"]).logits, index)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    quiet = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    runner = lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    rows = [DataLoader(Rows(count), batch_size=4) for count in (64, evaluated)]
    return lambda: runner.fit(Module(), *rows)


def numbers(outputs, logits, index):
    outputs.append(float(logits.mean()))


def the_last(outputs, logits, index):
    outputs[:] = [collections.deque([*(outputs[0] if outputs else ()), logits], maxlen=8)]


def all_that_fit(outputs, logits, index):
    outputs.append(logits)


PLAIN, LONG = samples(400, 20, 100), samples(400, 20, 100, longest=1500, at=300)
COLLATED = {"data_collator": padded, "arguments": EPOCH}
CASES = {
    "eval_loss": lambda: trainer(arguments=EVERY),
    "eval_metrics": lambda: trainer(arguments=EVERY, compute_metrics=accuracy),
    "eval_argmax": lambda: trainer(arguments=EVERY, compute_metrics=accuracy, preprocess_logits_for_metrics=argmax),
    "eval_batched": lambda: trainer(arguments={**EVERY, "batch_eval_metrics": True}, compute_metrics=batched),
    "eval_accumulates": lambda: trainer(arguments={**EVERY, "eval_accumulation_steps": 8}, compute_metrics=accuracy),
    "eval_cached": lambda: make(model(), Rows(64), Cached(1600), arguments=EVERY).train,
    "eval_workers": lambda: trainer(arguments={**EVERY, "dataloader_num_workers": 2}),
    "eval_lengths": lambda: (
        make(model(), PLAIN, PLAIN, arguments=EVERY, data_collator=padded, compute_metrics=accuracy).train
    ),
    "lengths": lambda: trainer(PLAIN, **COLLATED),
    "lengths_eager": lambda: trainer(PLAIN, net=model(attn_implementation="eager"), **COLLATED),
    "lengths_accumulated": lambda: trainer(
        PLAIN, data_collator=padded, arguments={**EPOCH, "gradient_accumulation_steps": 4}
    ),
    "lengths_checkpointed": lambda: trainer(
        PLAIN, data_collator=padded, arguments={**EPOCH, "gradient_checkpointing": True}
    ),
    "long_that_fits": lambda: trainer(LONG, **COLLATED),
    "long_cut_in_collator": lambda: trainer(LONG, data_collator=cut_in_collator, arguments=EPOCH),
    "long_never_reached": lambda: trainer(LONG, data_collator=padded, arguments={"max_steps": 40}),
    "long_first": lambda: trainer(LONG[300:] + LONG[:300], **COLLATED),
    "loop_numbers": lambda: loop(numbers),
    "loop_the_last": lambda: loop(the_last),
    "loop_all_that_fit": lambda: loop(all_that_fit),
    "loop_workers": lambda: loop(numbers, workers=2),
    "lightning_numbers": lambda: lightning(numbers),
}

if __name__ == "__main__":
    own = options(case="eval_loss")
    if own.case == "names":
        sys.exit(" ".join(CASES))
    os.makedirs("out", exist_ok=True)
    train = CASES[own.case]()
    limit(own.limit)
    peak_of(train)
