"""What data workers keep, by the code of the data set and the collator."""

from functools import cache
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, Subset

from forgather_mem.diagnose.leaks.sizes import Copied
from forgather_mem.diagnose.leaks.worker_code import copied_suspect, loader_of, worker_suspects
from forgather_mem.units import MIB

SEEN: dict[int, bytes] = {}


class Keeps(Dataset[int]):
    """Keeps rows in several ways."""

    def __init__(self) -> None:
        self.read: list[Any] = []
        self.by_length: dict[int, list[Any]] = {}

    def __len__(self) -> int:
        return 100

    @cache  # noqa: B019
    def decoded(self, index: int) -> bytes:
        return bytes(index)

    def __getitem__(self, index: int) -> int:
        """Mentions self.names.append(x) in a text only."""
        rows = [index]
        rows.append(index)
        self.read.append(rows)
        SEEN[index] = bytes(10)
        return index


class Remembers(Dataset[bytes]):
    """Keeps what it has read."""

    def __init__(self, kept: Any) -> None:
        self.kept, self.paths, self.epoch = kept, ["a.png"] * 400, 0

    def __len__(self) -> int:
        return 400


class ByNumber(Remembers):
    def __getitem__(self, index: int) -> bytes:
        if not self.kept[index]:
            self.kept[index] = bytes(10)
        return bytes(self.kept[index])


class ByPath(Remembers):
    def __getitem__(self, index: int) -> bytes:
        path = self.paths[index]
        return bytes(self.kept.setdefault(path, bytes(10)))


class ByEpoch(Remembers):
    def __getitem__(self, index: int) -> bytes:
        return bytes(self.kept.setdefault((index, self.epoch), bytes(10)))


class InLists(Remembers):
    def __getitem__(self, index: int) -> bytes:
        self.kept.setdefault(index, []).append(bytes(10))
        return bytes(10)


def collated(rows: list[int]) -> list[int]:
    SEEN.update(dict.fromkeys(rows, b""))
    return rows


def test_what_workers_keep_is_named_with_its_line() -> None:
    found = {one.held_by: one for one in worker_suspects(DataLoader(Subset(Keeps(), [1, 2])), 1e6)}
    assert set(found) == {"Keeps.read", "Keeps.decoded", f"{__name__}.SEEN"}
    one = found["Keeps.decoded"]
    assert (one.source_line, str(one.cure)[:8]) == ("@cache  # noqa: B019", "limit it")
    assert found["Keeps.read"].source_line == "self.read.append(rows)"
    assert found[f"{__name__}.SEEN"].source_line == "SEEN[index] = bytes(10)"
    (collator,) = worker_suspects(DataLoader([1, 2], collate_fn=collated), 1e6)  # type: ignore[arg-type]
    assert collator.source_line == 'SEEN.update(dict.fromkeys(rows, b""))'


@pytest.mark.parametrize("data", [ByNumber({}), ByNumber([None] * 400), ByPath({})])
def test_what_has_an_entry_for_each_row_is_limited_by_their_number(data: Any) -> None:
    workers = {"num_workers": 2, "persistent_workers": True}
    (one,) = worker_suspects(DataLoader(data, batch_size=8, **workers), 16 * MIB, 2)  # type: ignore[arg-type]
    assert one.bounded == f"{type(data).__name__}.kept holds one entry for each of 400 rows at most"
    assert one.full_bytes == 2 * 400 * MIB, "each worker that stays has all rows in the end"
    (one,) = worker_suspects(DataLoader(data, batch_size=8, num_workers=2), 16 * MIB, 2)
    assert one.full_bytes == 400 * MIB, "of workers that end with the epoch each has a part of them"


@pytest.mark.parametrize("cls", [ByEpoch, InLists])
def test_what_gets_more_entries_with_each_pass_is_not_limited_by_the_rows(cls: Any) -> None:
    (one,) = worker_suspects(DataLoader(cls({}), num_workers=2), 1e6)
    assert (one.held_by, one.bounded) == (f"{cls.__name__}.kept", None)


def test_copied_pages_may_be_of_what_workers_keep_and_are_surely_of_objects_only_where_nothing_is_kept() -> None:
    copied = Copied(per_step=4e5, bytes=9 * MIB, most_bytes=90 * MIB, num_workers=2, since_step=8)
    kept = Keeps()
    one = copied_suspect(DataLoader(kept), copied)
    assert (one.held_by, one.source_line) == ("Keeps.read", "self.read.append(rows)")
    assert (one.kind, str(one.cure)[:15]) == ("copied pages", "keep nothing in")
    assert "written, or as what they keep is put where memory was free: 390.6 KiB a step" in str(one.bounded)
    kept.read = list(range(1000))  # what there is of objects, beside other things that are kept
    one = copied_suspect(DataLoader(kept), copied)
    assert (one.held_by, one.count) == ("Keeps.read", 1000)
    assert "or as what they keep" in str(one.bounded)
    one = copied_suspect(DataLoader(list(range(1000))), copied)  # type: ignore[arg-type]
    assert (one.held_by, one.bounded) == (None, copied.why(by_reading=False)), "nobody knows"


def test_a_loader_that_no_trainer_tells_is_found_near_the_users_code() -> None:
    loader = DataLoader(Keeps(), num_workers=0)
    assert loader_of(None) is loader
    other = DataLoader(Keeps())
    assert loader_of(other) is other
    for _ in DataLoader(Keeps(), num_workers=1):  # which has only its pass left
        assert loader_of(None)._dataset.read == []  # type: ignore[attr-defined]
        break
