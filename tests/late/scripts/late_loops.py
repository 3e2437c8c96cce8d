"""Trainings that fail late without a Trainer's own loop, or after it. With `--limit -1` all of them finish."""

import logging
import sys

import lightning
import torch
from common import Rows, accuracy, limit, make, model, options, padded, peak_of, samples
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

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


TEXTS = [" ".join("w" * len(row["input_ids"])) for row in LONG]


class InBuckets(torch.utils.data.Sampler):
    """Batches of samples that are about as long, in an order of their own."""

    def __init__(self, lengths, size=4):
        self.lengths, self.size, self.chance = lengths, size, torch.Generator().manual_seed(2)

    def __len__(self):
        return -(-len(self.lengths) // self.size)

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        for place in torch.randperm(len(self), generator=self.chance).tolist():
            yield order[place * self.size :][: self.size]


class MadeOfText(torch.utils.data.Dataset):
    """Each sample is made when it is asked for; the collator makes tokens of it, and cuts what is too long."""

    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, index):
        return {"text": TEXTS[index].upper()}


def tokenized(rows):
    return padded([{"input_ids": [7] * len(row["text"].split()[:3000])} for row in rows])


class OwnLoader(Trainer):
    """As people write it who need batches of their own."""

    def get_train_dataloader(self):
        batches = InBuckets([len(text.split()) for text in TEXTS])
        loader = DataLoader(MadeOfText(), batch_sampler=batches, collate_fn=tokenized)
        return self.accelerator.prepare(loader)


class ByLength(torch.utils.data.Sampler):
    """A curriculum: what is short comes first."""

    def __len__(self):
        return 1200

    def __iter__(self):
        left = sorted(range(1200), key=lambda number: -len(TEXTS[number]))
        while left:
            yield left.pop()


class OwnSampler(Trainer):
    def _get_train_sampler(self, *given):
        return ByLength()


def of_a_trainer(kind, rows, collate):
    arguments = {"max_steps": -1, "num_train_epochs": 1, "remove_unused_columns": False}
    settings = {"output_dir": "out", "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    given = TrainingArguments(**settings, **arguments, per_device_train_batch_size=4)
    trainer = kind(model(1000, 64, 2), given, train_dataset=rows, data_collator=collate)
    return trainer.train


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
    "own_batch_sampler": (110, lambda place: of_a_trainer(OwnLoader, MadeOfText(), tokenized)),
    "own_sampler": (110, lambda place: of_a_trainer(OwnSampler, MadeOfText(), tokenized)),
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
