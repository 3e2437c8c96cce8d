"""Batches of other sizes, and of the longest rows."""

import itertools

import torch
from torch.utils.data import DataLoader
from transformers import BatchEncoding

from forgather_mem.planning.batches import (
    Longest,
    PlannedShape,
    batches_of_longest_rows,
    collating,
    longest_rows,
    resized,
    shape_of,
)


def test_all_tensors_of_a_batch_are_resized_together() -> None:
    batch = BatchEncoding({"input_ids": torch.arange(8).view(2, 4), "labels": torch.tensor([0, 1]), "name": "a"})
    larger = resized(batch, 3, 6)
    assert isinstance(larger, BatchEncoding)
    assert larger["input_ids"].tolist() == [[0, 1, 2, 3, 0, 1], [4, 5, 6, 7, 4, 5], [0, 1, 2, 3, 0, 1]]
    assert larger["labels"].tolist() == [0, 1, 0]
    assert larger["name"] == "a"


def test_pictures_have_rows_and_no_length() -> None:
    batch = {"labels": torch.zeros(2), "pixel_values": torch.zeros(2, 3, 8, 8)}
    assert shape_of(batch) == PlannedShape(2, None)
    assert resized(batch, 5, 7)["pixel_values"].shape == (5, 3, 8, 8)


def test_a_batch_may_be_one_tensor_or_a_list() -> None:
    assert shape_of(torch.zeros(4, 2)) == PlannedShape(4)
    assert [tensor.shape for tensor in resized([torch.zeros(4, 2), torch.zeros(4)], 2, None)] == [(2, 2), (2,)]
    assert shape_of("text") == PlannedShape()


def test_the_longest_rows_are_found_by_looking() -> None:
    rows = [{"input_ids": [0] * length} for length in (3, 9, 1, 7)]
    assert longest_rows(rows, 2) == Longest([1, 3], 9, 4, 4, "tokens", 2)


def test_rows_that_the_collator_tokenizes_are_compared_by_their_longest_text_or_list() -> None:
    rows = [{"ids": torch.zeros(length), "source": "web", "label": 1} for length in (5, 9, 1)]
    found = longest_rows(rows, 1)
    assert found == Longest([1], 9, 3, 3, "in 'ids'", 2)
    assert found.notes(0) == ["Batches are of the longest rows: 9 in 'ids'; others take less."]
    assert longest_rows([{"pixels": torch.zeros(3, 4, width)} for width in (4, 8)], 1) is None


def test_or_by_a_column_of_lengths() -> None:
    class Rows:
        column_names = ("length",)

        def __len__(self) -> int:
            return 3

        def __getitem__(self, key: str) -> list[int]:
            return {"length": [5, 1, 8]}[key]

    assert longest_rows(Rows(), 1) == Longest([2], 8, 3, 3, "tokens", 1)


def test_a_row_with_the_longest_labels_is_among_those_with_the_longest_texts() -> None:
    lengths = [(9, 2), (3, 1), (8, 3), (7, 2), (2, 6)]
    rows = [{"input_ids": [0] * text, "attention_mask": [1] * text, "labels": [0] * label} for text, label in lengths]
    for number, expected in ((1, [0]), (2, [0, 4]), (3, [0, 2, 4])):
        found = longest_rows(rows, number)
        assert found is not None
        assert found.numbers == expected


def test_of_a_samplers_batches_the_largest_is_taken() -> None:
    def taken(rows: list[dict[str, object]], batches: list[list[int]], **how: int) -> str:
        loader = DataLoader(rows, batch_sampler=batches, collate_fn=of_texts)  # type: ignore[arg-type]
        told.clear()
        notes: list[str] = []
        assert batches_of_longest_rows(loader, 2, "length", PlannedShape(), told, notes, **how)
        iterator = iter(DataLoader([0] * 9, collate_fn=lambda _: loader.collate_fn([])))
        next(itertools.islice(iterator, 1, None))
        return "".join(notes)

    told: list[PlannedShape] = []
    texts = [{"input_ids": [0] * length} for length in (3, 9, 3, 3)]
    of = "Batches are the largest of the 3 that come in this order: "
    assert taken(texts, [[0], [1], [0, 2, 3, 0]]) == f"{of}number 3, 4 rows to 3 tokens; others take less."
    assert taken([{"pixels": torch.zeros(3, 4)}] * 4, [[0], [1, 2], [3]]) == f"{of}number 2, 2 rows; others take less."
    assert taken(texts, [[1, 0], [0, 2], [2]]) == f"{of}number 2, 2 rows to 3 tokens; others take less."
    assert told == [PlannedShape(2, 9), PlannedShape(2, 3)], "the first comes before there is a state of the optimizer"


def of_texts(rows: list[dict[str, object]]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(len(rows), max(map(len, (row[name] for row in rows)))) for name in rows[0]}  # type: ignore[arg-type]


def test_rows_of_one_length_need_no_choice() -> None:
    assert longest_rows([{"input_ids": [1, 2]}] * 3, 2) is None
    assert longest_rows([torch.zeros(3)], 1) is None
    assert longest_rows(iter([]), 1) is None


def test_a_collator_gets_the_longest_rows_as_many_times_as_rows_were_asked() -> None:
    rows, told = [[1], [1, 2, 3], [1, 2]], []
    longest = Longest([1], 3, 3, 3)
    collate = collating(
        lambda samples: {"input_ids": torch.tensor(samples)}, rows, longest, PlannedShape(), told.append
    )
    assert collate([rows[0], rows[2]])["input_ids"].tolist() == [[1, 2, 3], [1, 2, 3]]
    assert told == [PlannedShape(2, 3)]


def padded(samples: list[list[int]]) -> dict[str, torch.Tensor]:
    length = max(map(len, samples))
    mask = [[1] * len(sample) + [0] * (length - len(sample)) for sample in samples]
    return {"input_ids": torch.zeros(len(samples), length, dtype=torch.long), "attention_mask": torch.tensor(mask)}


def test_a_batch_of_rows_that_are_equally_long_has_padding_as_those_of_the_training() -> None:
    rows = [[1] * length for length in (3, 9, 9, 9, 7)]
    longest = longest_rows([{"input_ids": row} for row in rows], 3)
    assert longest is not None

    def lengths(number: int, wanted: PlannedShape) -> list[int]:
        collate = collating(padded, rows, longest, wanted, lambda _: None)
        return [int(row.sum()) for row in collate(rows[:number])["attention_mask"]]

    assert lengths(3, PlannedShape()) == [9, 3, 9]
    assert lengths(1, PlannedShape()) == [9]
    assert lengths(1, PlannedShape(rows=2)) == [9, 3]
    assert lengths(3, PlannedShape(length=6)) == [6, 3, 6]
    assert lengths(3, PlannedShape(length=2)) == [2, 2, 2]


def test_a_collator_that_joins_rows_gets_the_longest_alone() -> None:
    rows = [[0] * 3, [1] * 9, [1] * 9, [0] * 7]
    longest = Longest([1, 2], 9, 4, 4, "tokens", 0)

    def join(samples: list[list[int]]) -> dict[str, torch.Tensor]:
        joined = torch.tensor([*itertools.chain(*samples)]).view(1, -1)
        return {"input_ids": joined, "loss_mask": joined}

    assert collating(join, rows, longest, PlannedShape(), lambda _: None)([[0], [0]])["input_ids"].shape == (1, 18)
