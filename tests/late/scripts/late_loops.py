"""Trainings that fail late without a Trainer's own loop, or after it. With `--limit -1` all of them finish."""

import logging
import sys

import lightning
import torch
from common import Rows, accuracy, limit, make, model, options, padded, peak_of, samples
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

LONG = samples(1200, 20, 200, longest=2500, at=777)


class Module(lightning.LightningModule):
    """Trains what it is given."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, index):
        return self.net(**batch).loss

    def validation_step(self, batch, index):
        self.log("loss", self.net(**batch).loss)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def fitted(module, data, *callbacks, evaluation=None, **options):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    runner = lightning.Trainer(**{"max_epochs": 1, "accelerator": "cpu", **quiet, **options}, callbacks=[*callbacks])
    loaders = [DataLoader(rows, batch_size=4, collate_fn=padded) for rows in (data, evaluation) if rows is not None]
    return lambda: runner.fit(module, *loaders)


def saves(place, net=None, rows=256, module=Module, **given):
    """A checkpoint takes 6.3 MiB."""
    saver = ModelCheckpoint(f"{place}/run", **{"every_n_train_steps": 10, "save_top_k": -1, **given})
    return fitted(module(net or model(4000, 64)), Rows(rows), saver)


def plain(rows, every=1):
    def train():
        net = model(1000, 64, 2)
        optimizer = torch.optim.AdamW(net.parameters())
        for number, batch in enumerate(DataLoader(rows, batch_size=4, collate_fn=padded)):
            net(**batch).loss.backward()
            if (number + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()

    return train


def writes_files(place, keeps=None, every=10, named="step-{}.pt"):
    """Each of 2 MiB; `keeps` is told of all of them."""

    def train():
        net, written = model(4000, 64), []
        optimizer = torch.optim.SGD(net.parameters())
        for number, batch in enumerate(DataLoader(Rows(512), batch_size=4), 1):
            net(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % every == 0:
                written.append(f"{place}/{named.format(number)}")
                torch.save(net.state_dict(), written[-1])
                if keeps:
                    keeps(written)

    return train


def accelerated(rows):
    from accelerate import Accelerator

    def train():
        accelerator = Accelerator(cpu=True)
        net = model(1000, 64, 2)
        loader = DataLoader(rows, batch_size=4, collate_fn=padded, shuffle=True)
        net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), loader)
        for batch in loader:
            accelerator.backward(net(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()

    return train


def second_test_set(place):
    """The first is small."""
    trainer = make(model(), Rows(64))
    return lambda: (trainer.train(), trainer.predict(Rows(64)), trainer.predict(Rows(3200)))


def best_model_evaluated(place):
    settings = {"eval_strategy": "steps", "save_strategy": "steps", "load_best_model_at_end": True, "max_steps": 4}
    trainer = make(
        model(), Rows(64), Rows(32), arguments={**settings, "eval_steps": 2, "save_steps": 2}, compute_metrics=accuracy
    )
    return lambda: (trainer.train(), trainer.evaluate(Rows(3200), metric_key_prefix="test"))


CASES = {
    "lightning_first_save": (380, lambda place: saves(place, model(30_000, 256), rows=64, every_n_train_steps=8)),
    "lightning_filling_disk": (0, saves),
    "plain_files": (0, writes_files),
    "plain_longest": (110, lambda place: plain(LONG)),
    "accelerated_longest": (110, lambda place: accelerated(LONG)),
    "second_test_set": (100, second_test_set),
    "best_model_evaluated": (100, best_model_evaluated),
}

if __name__ == "__main__":
    own = options(case="plain_longest", folder="out")
    if own.case == "names":
        sys.exit(" ".join(CASES))
    mib, start = CASES[own.case]
    train = start(own.folder)
    limit(0 if own.limit < 0 else own.limit or mib)
    peak_of(train)
