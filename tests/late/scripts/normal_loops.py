"""Trainings like those of late_loops.py in which nothing fails late, each by its name."""

import itertools
import os
import sys
from pathlib import Path

import torch
from common import Rows, accuracy, limit, make, model, options, padded, peak_of, samples
from late_loops import LONG, Module, accelerated, fitted, plain, saves, writes_files
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from normal import argmax
from torch.utils.data import DataLoader

PLAIN = samples(400, 20, 100)
CURRICULUM = [*samples(160, 20, 100), *samples(40, 900, 1500)]


class LeavesOut(Module):
    """Writes none of its weights."""

    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = checkpoint["optimizer_states"] = {}


class Stops(Callback):
    """After 20 steps."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.global_step == 20


def monitored(place):
    saver = ModelCheckpoint(f"{place}/run", monitor="loss", save_top_k=2)
    return fitted(Module(model(4000, 64)), Rows(64), saver, evaluation=Rows(16), max_epochs=8)


def stopped(place):
    saver = ModelCheckpoint(f"{place}/run", every_n_train_steps=10, save_top_k=-1)
    return fitted(Module(model(4000, 64)), Rows(256), saver, Stops())


def patient(place):
    saver = ModelCheckpoint(f"{place}/run", save_top_k=-1)
    early = EarlyStopping("loss", stopping_threshold=1e9)
    return fitted(Module(model(4000, 64)), Rows(64), saver, early, evaluation=Rows(16), max_epochs=8)


def left_early():
    """As `max_train_steps` does it."""
    net = model(1000, 64, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    for number, batch in enumerate(DataLoader(CURRICULUM, batch_size=4, collate_fn=padded), 1):
        net(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 40:
            break


def sliced():
    net = model(1000, 64, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    for batch in itertools.islice(DataLoader(CURRICULUM, batch_size=4, collate_fn=padded), 40):
        net(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def stopped_trainer(place):
    return make(
        model(1000, 64, 2),
        CURRICULUM,
        arguments={"max_steps": 40, "train_sampling_strategy": "sequential"},
        data_collator=padded,
    ).train


def after(evaluation, **parts):
    trainer = make(model(), Rows(64), Rows(evaluation), **parts)
    return lambda: (trainer.train(), trainer.evaluate(), trainer.predict(Rows(evaluation // 4)))


def rotated(written):
    for old in written[:-3]:
        Path(old).unlink(missing_ok=True)


CASES = {
    "plain_files_rotated": lambda place: writes_files(place, rotated),
    "plain_files_one_name": lambda place: writes_files(place, named="last.pt"),
    "plain_files_few": lambda place: writes_files(place, every=32),
    "lightning_saves_few": lambda place: saves(place, save_top_k=1),
    "lightning_saves_weights": lambda place: saves(place, save_weights_only=True),
    "lightning_one_name": lambda place: saves(place, filename="last", enable_version_counter=False),
    "lightning_leaves_out": lambda place: saves(place, module=LeavesOut),
    "lightning_monitored": monitored,
    "lightning_stopped": stopped,
    "lightning_patient": patient,
    "lightning_limited": lambda place: fitted(
        Module(model(1000, 64, 2)), CURRICULUM, limit_train_batches=40, enable_checkpointing=False
    ),
    "lightning_lengths": lambda place: fitted(Module(model()), PLAIN, enable_checkpointing=False),
    "plain_lengths": lambda place: plain(PLAIN),
    "plain_accumulated": lambda place: plain(LONG, every=4),
    "plain_left_early": lambda place: left_early,
    "plain_sliced": lambda place: sliced,
    "accelerated_lengths": lambda place: accelerated(PLAIN),
    "trainer_stopped": stopped_trainer,
    "after_loss": lambda place: after(3200),
    "after_argmax": lambda place: after(3200, compute_metrics=accuracy, preprocess_logits_for_metrics=argmax),
}

if __name__ == "__main__":
    own = options(case="plain_lengths", folder="out")
    if own.case == "names":
        sys.exit(" ".join(CASES))
    os.makedirs(own.folder, exist_ok=True)
    train = CASES[own.case](own.folder)
    limit(own.limit)
    peak_of(train)
