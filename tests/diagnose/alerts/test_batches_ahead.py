"""What is foretold of a pass is compared with what it then gives, and with how it was before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from forgather_mem.diagnose.alerts.batches_ahead import batches_ahead

LENGTHS = [5, 3, 9, 1, 7, 2, 8, 4, 6, 3, 11, 2]


class Rows(Dataset[Any]):
    """Made as they are asked for."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.full((LENGTHS[index],), index)}


class FromFile(Rows):
    """Read through a buffer that ends within a row: the rest is read from where the file is."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.file.seek(3000 * index)
        return super().__getitem__(int(self.file.read(3000)[2998:]))


class ByLength(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        left = sorted(range(len(LENGTHS)), key=LENGTHS.__getitem__)
        while left:
            yield left.pop()


class Buckets(Sampler[list[int]]):
    """Batches of few tokens, in an order that a generator of its own draws as it goes."""

    def __init__(self) -> None:
        self.chance = random.Random(3)

    def __iter__(self) -> Iterator[list[int]]:
        left = list(range(len(LENGTHS)))
        while left:
            size = self.chance.randrange(1, 4)
            yield [left.pop(self.chance.randrange(len(left))) for _ in range(min(size, len(left)))]


class DrawsFromAll(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        for _ in LENGTHS:
            yield random.sample(range(len(LENGTHS)), 2)


def padded(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    tokens = torch.nn.utils.rnn.pad_sequence([row["input_ids"][:8] for row in rows], batch_first=True)
    return {"input_ids": tokens}


def sometimes_longer(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.zeros(len(rows), random.randrange(1, 10**6), dtype=torch.long)}


def shapes(batches: Iterator[Any]) -> list[tuple[int, ...]]:
    return [tuple(batch["input_ids"].shape) for batch in batches]


@pytest.fixture(params=[False, True], ids=["made", "from a file"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rows]:
    path = tmp_path / "rows"
    path.write_text("".join(f"{number:02d}" * 1500 for number in range(len(LENGTHS))))
    with path.open("rb") as file:
        yield FromFile(file) if request.param else Rows()


@pytest.mark.parametrize(
    "more", [{"batch_size": 2}, {"sampler": ByLength(), "batch_size": 2}, {"batch_sampler": Buckets()}]
)
def test_the_batches_to_come_are_those_that_come(data: Rows, more: dict[str, Any]) -> None:
    iterator = iter(DataLoader(data, collate_fn=padded, **more))
    next(iterator)
    states = torch.get_rng_state(), random.getstate()
    ahead = batches_ahead(iterator, None, 5.0)
    assert ahead is not None
    assert (torch.equal(states[0], torch.get_rng_state()), random.getstate()) == (True, states[1])
    assert ahead.taken == 1
    assert ahead.shapes == shapes(iterator)


def test_of_known_lengths_no_sample_is_made() -> None:
    iterator = iter(DataLoader(range(12), batch_sampler=Buckets(), collate_fn=lambda numbers: list(numbers)))  # type: ignore[arg-type]
    next(iterator)
    ahead = batches_ahead(iterator, LENGTHS, 5.0)
    assert ahead is not None
    assert ahead.shapes == [(len(batch), max(LENGTHS[number] for number in batch)) for batch in iterator]


@pytest.mark.parametrize(
    "more",
    [{"batch_sampler": DrawsFromAll(), "collate_fn": padded}, {"batch_size": 2, "collate_fn": sometimes_longer}],
)
def test_what_chance_decides_is_not_known(more: dict[str, Any]) -> None:
    iterator = iter(DataLoader(Rows(), **more))
    next(iterator)
    assert batches_ahead(iterator, None, 5.0) is None


def test_a_data_set_that_writes_as_it_reads_is_left_alone(tmp_path: Path) -> None:
    class Caches(Rows):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            (tmp_path / str(index)).write_text("made")
            return super().__getitem__(index)

    iterator = iter(DataLoader(Caches(), batch_size=2, collate_fn=padded))
    next(iterator)
    assert batches_ahead(iterator, None, 5.0) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_batches_are_made_while_there_is_time() -> None:
    iterator = iter(DataLoader(Rows(), batch_size=2, collate_fn=padded))
    next(iterator)
    ahead = batches_ahead(iterator, None, 0.0)
    assert ahead is not None
    assert ahead.shapes == [(2, 8)]
