"""Batches of other sizes, and of the longest rows."""

import numpy as np
import torch
from transformers import BatchEncoding

from forgather_mem.planning.batches import (
    PlannedShape,
    Sizes,
    collating,
    largest_of,
    longest_of,
    looked_at,
    resized,
    row_length,
    shape_of,
)  # fmt: skip


def test_all_tensors_of_a_batch_are_resized_together() -> None:
    batch = BatchEncoding({"input_ids": torch.arange(8).view(2, 4), "labels": torch.tensor([0, 1]), "name": "a"})
    larger = resized(batch, 3, 6)
    assert isinstance(larger, BatchEncoding)
    assert larger["input_ids"].tolist() == [[0, 1, 2, 3, 0, 1], [4, 5, 6, 7, 4, 5], [0, 1, 2, 3, 0, 1]]
    assert larger["labels"].tolist() == [0, 1, 0]
    assert larger["name"] == "a"


def test_rows_that_a_data_set_keeps_are_looked_at_as_long_as_they_take_little_memory() -> None:
    class Keeps(dict[int, torch.Tensor]):
        def __missing__(self, row: int) -> torch.Tensor:
            return self.setdefault(row, torch.ones(2**20))

    looked = looked_at(Keeps(), [[row] for row in range(200)], {}, 60.0)  # type: ignore[arg-type]
    assert 10 < len(list(looked)) < 30  # of 4 MiB each


def test_pictures_have_rows_and_no_length() -> None:
    batch = {"labels": torch.zeros(2), "pixel_values": torch.zeros(2, 3, 8, 8)}
    assert shape_of(batch) == PlannedShape(2, None)
    assert resized(batch, 5, 7)["pixel_values"].shape == (5, 3, 8, 8)


def test_a_batch_may_be_one_tensor_or_a_list() -> None:
    assert shape_of(torch.zeros(4, 2)) == PlannedShape(4)
    assert [tensor.shape for tensor in resized([torch.zeros(4, 2), torch.zeros(4)], 2, None)] == [(2, 2), (2,)]
    assert shape_of("text") == PlannedShape()


def sizes_of(rows: list[object]) -> dict[int, Sizes]:
    sizes: dict[int, Sizes] = {}
    assert len(list(looked_at(rows, ([number] for number in range(len(rows))), sizes))) == len(rows)
    return sizes


def test_rows_are_compared_by_their_tokens_else_by_their_longest_text_or_list() -> None:
    rows = [{"ids": torch.zeros(5), "source": "web", "label": 1}, {"input_ids": [1] * 3, "text": "a" * 9}, [2, [3] * 4]]
    sizes = sizes_of([*rows, {"pixels": torch.zeros(3, 4, 8)}, 7, [5, 6]])
    assert sizes[0] == {"ids": 5, "source": 3}
    assert [row_length(one) for one in sizes.values()] == [5, 3, 4, 0, 0, 2]


def test_of_another_size_the_longest_rows_are_planned_or_the_same_with_padding() -> None:
    lengths = [(9, 2), (3, 1), (8, 3), (7, 2), (2, 6)]
    sizes = sizes_of([{"input_ids": [0] * text, "labels": [0] * label} for text, label in lengths])
    assert longest_of(sizes, 1) == [[0], [0]]
    assert longest_of(sizes, 2) == [[0, 4], [0, 4]]
    assert longest_of(sizes, 3) == [[0, 4, 2], [0, 4, 4]]
    assert longest_of(sizes, 7)[0] == [0, 4, 2, 3, 1, 0, 4]


def padded(samples: list[object]) -> dict[str, torch.Tensor]:
    rows = [torch.ones(len(sample), dtype=torch.long) for sample in samples]  # type: ignore[arg-type]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": ids}


def joined(samples: list[object]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.cat([torch.ones(1, len(sample)) for sample in samples], 1)}  # type: ignore[arg-type]


def test_the_largest_is_that_which_the_collator_makes_so_and_of_equals_one_with_padding() -> None:
    rows: list[object] = [[1] * length for length in (3, 9, 9, 9, 7)]
    batches, sizes = [[1, 2], [0, 1], [0, 4]], sizes_of(rows)
    found = [largest_of(batches, sizes, collate, rows) for collate in (padded, joined)]
    assert [(one.largest, one.shape) for one in found if one] == [(1, PlannedShape(2, 9)), (0, PlannedShape(1, 18, 2))]
    among = largest_of(batches, sizes, padded, rows, [0, 2])
    of = "Batches are the largest of the 3 that come in this order"
    assert among.note(False) == f"{of}: 9 tokens."
    assert largest_of(batches, sizes, torch.stack, rows) is None  # type: ignore[arg-type]


def test_of_batches_of_any_size_that_with_the_most_rows_is_taken() -> None:
    rows: list[object] = [torch.zeros(3, 4, 4)] * 4
    found = largest_of([[0], [1, 2], [3]], sizes_of(rows), torch.stack, rows)  # type: ignore[arg-type]
    assert (found.largest, found.shape) == (1, PlannedShape(2))


def test_a_batch_of_another_size_has_its_rows_again() -> None:
    told: list[PlannedShape] = []
    collate = collating(padded, PlannedShape(rows=3, length=2), told.append)
    assert collate([[1, 2, 3], [1]])["attention_mask"].tolist() == [[1, 1], [1, 0], [1, 1]]
    assert told == [PlannedShape(3, 2)]


def test_values_are_whole_numbers_that_are_no_padding_and_texts_are_none() -> None:
    rows: list[object] = [
        {"labels": [-100, -100, 5]}, {"labels": torch.tensor([-100, 3, 5])}, {"labels": np.array([0, 0, 7])},
        {"text": "", "image": b"abc", "names": np.array(["a", "b"]), "mixed": [1, None], "empty": [], "large": [2**70]},
        {"x": torch.ones(3), "nested": [[1], [2, 3]], "kept": torch.ones(2, requires_grad=True)},
    ]  # fmt: skip
    assert [row.get("", 0) for row in sizes_of(rows).values()] == [1, 2, 1, 1, 0]
