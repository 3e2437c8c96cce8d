"""More trainings that fail late, by one who knew only what the documentation says of late failures.

With `--limit -1`, and without a small disk below `--folder`, all of them finish.
"""

import sys

from common import Rows, accuracy, limit, make, model, options, padded, peak_of, samples
from normal import lightning, loop
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast, TrainerCallback

EPOCH = {"max_steps": -1, "num_train_epochs": 1}
NUM_ROWS = 3200


class Predicts(TrainerCallback):
    """Looks at a test set when the epoch is over; nobody computes metrics."""

    trainer = None

    def on_epoch_end(self, args, state, control, **more):
        self.trainer.predict(Rows(NUM_ROWS))


def predicted_within(place):
    predicts = Predicts()
    trainer = predicts.trainer = make(model(), Rows(64), arguments=EPOCH, callbacks=[predicts])
    return trainer.train


def predicted_after(place):
    trainer = make(model(), Rows(64))
    return lambda: (trainer.train(), trainer.predict(Rows(NUM_ROWS)))


def evaluated_after(place):
    trainer = make(model(), Rows(64), Rows(NUM_ROWS), compute_metrics=accuracy)
    return lambda: (trainer.train(), trainer.evaluate())


def probabilities(outputs, logits, index):
    outputs.append({"probabilities": logits.softmax(-1).numpy(), "index": index})


def library_collator():
    from tokenizers import Tokenizer, models

    words = {"[PAD]": 0, "[UNK]": 1}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[UNK]")), pad_token="[PAD]", unk_token="[UNK]"
    )
    pads = DataCollatorWithPadding(tokenizer)

    def collate(rows):
        batch = pads(rows)
        batch["labels"] = batch["input_ids"].clone()
        return batch

    return collate


def long(data, collator=padded, **arguments):
    return make(model(1000, 64, 2), data, arguments={**EPOCH, **arguments}, data_collator=collator).train


def curriculum(place):
    """The short ones first."""
    rows = sorted(samples(600, 20, 100), key=lambda row: len(row["input_ids"]))
    rows[-8:] = [{"input_ids": row["input_ids"] * 20} for row in rows[-8:]]
    return long(rows, train_sampling_strategy="sequential")


def epochs_on_disk(place):
    """A checkpoint takes 6.3 MiB."""
    settings = {"output_dir": f"{place}/run", "max_steps": -1, "num_train_epochs": 4, "save_strategy": "epoch"}
    return make(model(4000, 64), Rows(64), arguments=settings).train


CASES = {
    "predicted_within": (100, predicted_within),
    "predicted_after": (100, predicted_after),
    "evaluated_after": (100, evaluated_after),
    "loop_probabilities": (90, lambda place: loop(probabilities, batches=1600)),
    "lightning_probabilities": (90, lambda place: lightning(probabilities, evaluated=6400)),
    "long_with_library_collator": (
        110,
        lambda place: long(samples(1200, 20, 200, longest=2500, at=777), library_collator()),
    ),
    "long_in_order": (
        110,
        lambda place: long(samples(1200, 20, 100, longest=2500, at=1100), train_sampling_strategy="sequential"),
    ),
    "curriculum": (110, curriculum),
    "epochs_on_disk": (0, epochs_on_disk),
}

if __name__ == "__main__":
    own = options(case="predicted_within", folder="out")
    if own.case == "names":
        sys.exit(" ".join(CASES))
    mib, start = CASES[own.case]
    train = start(own.folder)
    limit(0 if own.limit < 0 else own.limit or mib)
    peak_of(train)
