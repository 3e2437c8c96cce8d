"""Lengths and order are compared with the batches that the loader then gives."""

import tracemalloc
from functools import partial
from typing import Any

import pytest
import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import DataLoader, Dataset, RandomSampler
from transformers import DataCollatorWithPadding, default_data_collator
from transformers.trainer_pt_utils import LengthGroupedSampler

from forgather_mem.diagnose.alerts.sample_lengths import batches_of, cuts, lengths_of

LENGTHS = [5, 3, 9, 1, 7, 2, 8]
SAMPLES = [{"input_ids": [number] * length} for number, length in enumerate(LENGTHS)]


class Kept(Dataset[Any]):
    def __init__(self, samples: list[Any]) -> None:
        self.name, self.samples = "kept", samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Cuts(Kept):
    def __getitem__(self, index: int) -> Any:
        return {"input_ids": self.samples[index]["input_ids"][:4]}


class WithColumn(Cuts):
    column_names = ("length",)

    def __getitem__(self, index: Any) -> Any:
        return LENGTHS if index == "length" else super().__getitem__(index)


@pytest.mark.parametrize(
    "dataset",
    [
        SAMPLES,
        [torch.zeros(length, dtype=torch.long) for length in LENGTHS],
        Kept(SAMPLES),
        Kept([list(range(length)) for length in LENGTHS]),
        WithColumn(SAMPLES),
    ],
    ids=["list", "tensors", "kept", "kept lists", "column"],
)
def test_the_lengths_are_known_without_loading(dataset: Any) -> None:
    found = lengths_of(dataset)
    assert found is not None
    assert list(found) == LENGTHS


@pytest.mark.parametrize("dataset", [Cuts(SAMPLES), iter(SAMPLES), Kept([object()] * 7), ["text"] * 7, []])
def test_what_only_loading_would_tell_is_not_known(dataset: Any) -> None:
    assert lengths_of(dataset) is None


def test_a_function_cuts_if_it_slices_or_names_a_limit() -> None:
    def truncates(rows: Any) -> Any:
        return rows.encode(truncation=True)

    assert cuts(truncates)
    assert cuts(Cuts.__getitem__)
    assert not cuts(pads)
    assert not cuts(len)


def shortened(row: Any) -> Any:
    return row["input_ids"][:4]


def in_helper(rows: Any) -> Any:
    return pads([shortened(row) for row in rows])


def in_comprehension(rows: Any) -> Any:
    return pads([torch.tensor(row["input_ids"][:4]) for row in rows])


def pads(rows: Any) -> Any:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def keeps_to(most: int, rows: Any) -> Any:
    return pads([row.narrow(0, 0, most) for row in rows])


class Collator:
    def __init__(self, ready: Any = None) -> None:
        self.ready = ready

    def __call__(self, rows: Any) -> Any:
        return pads(self.fitting(rows) if self.ready is None else self.ready(rows))

    def fitting(self, rows: Any) -> Any:
        return [shortened(row) for row in rows]


class Pads:
    def __call__(self, rows: Any) -> Any:
        return self.together(rows)

    def together(self, rows: Any) -> Any:
        return pads(rows)


def closed_over() -> Any:
    cut = shortened
    return lambda rows: pads([cut(row) for row in rows])


@pytest.mark.parametrize(
    "collate",
    [
        in_helper,
        in_comprehension,
        partial(keeps_to, 4),
        Collator(),
        Collator().__call__,
        Collator(in_helper),
        closed_over(),
    ],
    ids=["helper", "comprehension", "partial", "object", "method", "kept in an object", "closure"],
)
def test_a_cut_is_found_where_the_function_calls_it(collate: Any) -> None:
    assert cuts(collate)


@pytest.mark.parametrize(
    "collate",
    [pads, Pads(), DataCollatorWithPadding(None), default_data_collator],  # type: ignore[arg-type]
    ids=["function", "object", "transformers' padding", "transformers' default"],
)
def test_what_only_pads_cuts_nothing(collate: Any) -> None:
    assert not cuts(collate)


def sampler(kind: str) -> Any:
    generator = torch.Generator().manual_seed(4)
    if kind == "random":
        return RandomSampler(SAMPLES, generator=generator)  # type: ignore[arg-type]
    if kind == "seedable":
        return SeedableRandomSampler(SAMPLES, data_seed=3)
    if kind == "grouped":
        return LengthGroupedSampler(2, lengths=LENGTHS, generator=generator)
    return None


@pytest.mark.parametrize("kind", ["sequential", "random", "seedable", "grouped"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("read", [1, 2])
def test_the_order_is_that_of_the_batches_and_none_is_taken(kind: str, drop_last: bool, read: int) -> None:
    def given() -> Any:
        return DataLoader(
            SAMPLES,  # type: ignore[arg-type]
            batch_size=2,
            sampler=sampler(kind),
            drop_last=drop_last,
            collate_fn=lambda rows: [LENGTHS.index(len(row["input_ids"])) for row in rows],
        )

    iterator = iter(given())
    first = [next(iterator) for _ in range(read)]
    batches = batches_of(iterator)
    assert batches is not None
    known = [list(batch) for batch in batches]
    assert known == [*first, *iterator]
    assert known == list(given())


def test_an_order_that_is_made_as_it_goes_is_not_known() -> None:
    iterator = iter(DataLoader(SAMPLES, batch_size=2, sampler=(number for number in range(7)), collate_fn=list))  # type: ignore[arg-type,misc]
    next(iterator)
    assert batches_of(iterator) is None


def test_no_copy_is_made_of_the_order() -> None:
    iterator = iter(DataLoader(range(1_000_000), batch_size=8))  # type: ignore[arg-type]
    next(iterator)
    tracemalloc.start()
    try:
        batches = batches_of(iterator)
        assert batches is not None
        assert next(batches) == range(8)
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()


class Signals(torch.utils.data.Dataset[Any]):
    """Samples of these lengths, each cut."""

    def __init__(self, lengths: list[int], most: int = 10**6) -> None:
        self.names = ["a"] * len(lengths)
        self.signals = [torch.zeros(2, length) for length in lengths]
        self.most = most

    def __len__(self) -> int:
        return len(self.signals)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.signals[index][:, : self.most]


def test_what_nobody_keeps_is_not_known() -> None:
    assert lengths_of(range(9)) is None
    assert lengths_of([1, 2, 3]) is None, "numbers may mean anything"


@pytest.mark.parametrize("sample", [torch.zeros(7), ([0.0] * 7, 3), {"x": [1] * 7, "y": 1}, (torch.zeros(1, 7), 0)])
def test_a_sample_is_as_large_as_its_largest_part(sample: Any) -> None:
    assert list(lengths_of([sample, sample]) or ()) == [7, 7]
