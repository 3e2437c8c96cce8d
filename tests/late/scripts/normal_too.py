"""More trainings in which nothing fails late, by one who knew only what the documentation says of late failures.

What they seem to need is far more than half as much again as they do need: who takes it for real, is wrong.
"""

import functools
import gc
import os
import shutil
import sys
from pathlib import Path

import torch
from common import Rows, accuracy, limit, make, model, options, padded, peak_of, samples
from normal import argmax, lightning, loop
from torch.utils.data import DataLoader
from transformers import TrainerCallback

EVERY = {"eval_strategy": "steps", "eval_steps": 5, "max_steps": 10}
EPOCH = {"max_steps": -1, "num_train_epochs": 1}
LONG_MODEL = {"vocabulary": 1000, "hidden": 64, "layers": 2}


def evaluating(evaluation, *, arguments=None, **parts):
    return make(model(), Rows(64), evaluation, arguments={**EVERY, **(arguments or {})}, **parts).train


class CachesLong(Rows):
    """Keeps an image of each of the first 48 rows, as a cache of a fixed size does."""

    def __init__(self, count):
        super().__init__(count)
        self.cache = {}

    def __getitem__(self, index):
        if len(self.cache) < 48:
            self.cache[index] = torch.ones(30_000)
        return super().__getitem__(index)


def longest_first():
    """Sorted for the sake of padding; kept batch by batch."""
    rows = sorted(samples(1200, 4, 12), key=lambda row: -len(row["input_ids"]))
    rows = [{"input_ids": [1] * 200}] * 24 + rows
    lists = {"eval_do_concat_batches": False}
    return evaluating(rows, arguments=lists, data_collator=padded, compute_metrics=lambda p: {})


def shows_some(outputs, logits, index):
    """Keeps all of the first 20 batches to look at, then numbers."""
    outputs.append(logits.repeat(4, 1, 1) if index < 20 else float(logits.mean()))


def writes_shards(outputs, logits, index):
    """Writes what was predicted after every 32 batches."""
    outputs.append(logits.repeat(4, 1, 1))
    if len(outputs) == 32:
        torch.save(torch.cat(outputs), "shard.pt")
        outputs.clear()


def rare_garbage(outputs, logits, index):
    """Each batch leaves a cycle, which the collector finds some time."""
    cycle = [logits.repeat(4, 1, 1)]
    cycle.append(cycle)
    if index % 24 == 23:
        gc.collect()


def shortened(row):
    return {"input_ids": row["input_ids"][:128]}


def cut_in_helper(rows):
    return padded([shortened(row) for row in rows])


def cut_in_comprehension(rows):
    ids = [torch.tensor(row["input_ids"][:128]) for row in rows]
    tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return {"input_ids": tokens, "labels": tokens.clone()}


def cut_at(rows, most):
    ids = [torch.as_tensor(row["input_ids"]).narrow(0, 0, min(most, len(row["input_ids"]))) for row in rows]
    tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return {"input_ids": tokens, "labels": tokens.clone()}


class Collator:
    """Cuts in a method of its own."""

    def __call__(self, rows):
        return padded(self.fitting(rows))

    def fitting(self, rows):
        return [shortened(row) for row in rows]


class HelpedByMethod(torch.utils.data.Dataset):
    """Samples that a method cuts when they are loaded."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.ready(self.rows[index])

    def ready(self, row):
        return shortened(row)


LONG = samples(400, 20, 100, longest=3000, at=320)


def long(data=LONG, collator=padded, arguments=None, net=None):
    return make(
        net or model(**LONG_MODEL), data, arguments={**EPOCH, **(arguments or {})}, data_collator=collator
    ).train


def bucketed():
    """Batches of about as many tokens each: a long sample comes alone."""
    trainer = make(model(**LONG_MODEL), samples(300, 20, 60, longest=240, at=200), arguments=EPOCH)
    rows, order, batches = trainer.train_dataset, sorted(range(300), key=lambda at: at * 7919 % 300), [[]]
    for index in order:
        longest = max([len(rows[other]["input_ids"]) for other in [*batches[-1], index]])
        if longest * (len(batches[-1]) + 1) > 256 and batches[-1]:
            batches.append([])
        batches[-1].append(index)
    trainer.get_train_dataloader = lambda: DataLoader(rows, batch_sampler=batches, collate_fn=padded)
    return trainer.train


class MovesAway(TrainerCallback):
    """Each checkpoint goes to another place as soon as it is written."""

    def on_save(self, args, state, control, **more):
        for there in Path(args.output_dir).glob("checkpoint-*"):
            shutil.rmtree(there)


def saves(place, **more):
    """A checkpoint takes 6.3 MiB."""
    callbacks = [MovesAway()] if more.pop("moves", False) else None
    settings = {"output_dir": f"{place}/run", "max_steps": 30, "save_strategy": "steps", "save_steps": 5}
    return make(model(4000, 64), Rows(256), arguments={**settings, **more}, callbacks=callbacks).train


def resumed(place):
    """Three checkpoints are there already, and go one by one as new ones come."""
    saves(place, save_total_limit=3, max_steps=15)()
    return functools.partial(saves(place, save_total_limit=3), resume_from_checkpoint=True)


def on_start(**more):
    settings = {"eval_on_start": True, **more}
    return evaluating(Rows(1600), arguments=settings, compute_metrics=accuracy, preprocess_logits_for_metrics=argmax)


def lightning_sets():
    """As Lightning does by itself: two batches are tried before the first step."""
    return lightning(shows_some)


CASES = {
    "caches_some_without_metrics": lambda place: evaluating(CachesLong(1600)),
    "caches_some_with_argmax": lambda place: evaluating(
        CachesLong(1600), compute_metrics=accuracy, preprocess_logits_for_metrics=argmax
    ),
    "few_eval_batches": lambda place: evaluating(Rows(24), compute_metrics=accuracy),
    "longest_first": lambda place: longest_first(),
    "metrics_on_start": lambda place: on_start(),
    "shows_some": lambda place: loop(shows_some),
    "writes_shards": lambda place: loop(writes_shards),
    "rare_garbage": lambda place: loop(rare_garbage),
    "lightning_shows_some": lambda place: lightning_sets(),
    "cut_in_helper": lambda place: long(collator=cut_in_helper),
    "cut_in_comprehension": lambda place: long(collator=cut_in_comprehension),
    "cut_by_partial": lambda place: long(collator=functools.partial(cut_at, most=128)),
    "cut_by_object": lambda place: long(collator=Collator()),
    "cut_by_data_set": lambda place: long(HelpedByMethod(LONG)),
    "grouped": lambda place: long(
        samples(400, 20, 100, longest=400, at=320), arguments={"train_sampling_strategy": "group_by_length"}
    ),
    "bucketed": lambda place: bucketed(),
    "disk_just_enough": lambda place: saves(place, save_total_limit=2),
    "disk_just_enough_resumed": resumed,
    "disk_moved_away": lambda place: saves(place, moves=True),
}

if __name__ == "__main__":
    own = options(case="shows_some", folder="out")
    if own.case == "names":
        sys.exit(" ".join(CASES))
    os.makedirs(own.folder, exist_ok=True)
    train = CASES[own.case](own.folder)
    limit(own.limit)
    peak_of(train)
