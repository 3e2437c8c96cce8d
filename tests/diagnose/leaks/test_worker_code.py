"""What data workers keep, by the code of the data set and the collator."""

from functools import cache
from typing import Any

from torch.utils.data import DataLoader, Dataset, Subset

from forgather_mem.diagnose.leaks.worker_code import loader_of, worker_suspects

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


def test_a_loader_that_no_trainer_tells_is_found_near_the_users_code() -> None:
    loader = DataLoader(Keeps(), num_workers=0)
    assert loader_of(None) is loader
    other = DataLoader(Keeps())
    assert loader_of(other) is other
    for _ in DataLoader(Keeps(), num_workers=1):  # which has only its pass left
        assert loader_of(None)._dataset.read == []  # type: ignore[attr-defined]
        break
