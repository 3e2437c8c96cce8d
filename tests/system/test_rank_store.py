"""Agreement between ranks, on a real store of torch.distributed; both ranks in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgather_mem.engine.facts import training_key
from forgather_mem.system.rank_store import RankAgreement, _Asker, default_store, share_text


@pytest.fixture
def store(tmp_path: Path) -> Iterator[dist.Store]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield default_store()
    dist.destroy_process_group()


def two_ranks(key: str, text: str = "a") -> tuple[RankAgreement, RankAgreement]:
    return RankAgreement(key, text, rank=0, world_size=2), RankAgreement(key, text, rank=1, world_size=2)


@pytest.mark.usefixtures("store")
def test_a_training_of_one_rank_alone_does_not_part_the_keys_of_the_later_ones() -> None:
    keys = [[training_key(0, rank, 2) for rank in (0, 1)] for _ in range(2)]
    training_key(40, 0, 2)  # the first rank alone goes on from a checkpoint
    keys += [[training_key(0, rank, 2) for rank in (0, 1)], [training_key(40, 1, 2)]]
    assert all(len(set(of_ranks)) == 1 for of_ranks in keys)
    assert len({key for of_ranks in keys for key in of_ranks}) == 4, "each training has a key of its own"


def test_without_a_store_no_two_ranks_share_a_key() -> None:
    assert len({training_key(0, rank, 2) for rank in (0, 1)}) == 2


_numbers = iter(range(10**9))


@pytest.mark.usefixtures("store")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    period=st.integers(1, 5),
    proposals=st.dictionaries(st.integers(1, 60), st.sampled_from("abcd")),
    lag=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_whatever_is_proposed_and_whoever_is_ahead_both_ranks_see_the_same_at_every_step(
    period: int, proposals: dict[int, str], lag: list[bool]
) -> None:
    first, second = two_ranks(f"law/{next(_numbers)}")
    seen: tuple[list[str], list[str]] = ([], [])
    for step in range(period, 60, period):
        order = (1, 0) if lag[step] else (0, 1)  # at one step rank 1 may ask before rank 0 has proposed, or after
        for rank in order:
            seen[rank].append((first, second)[rank].at(step))
            if rank == 0 and step in proposals:
                first.propose(proposals[step], from_step=step + 2 * period)
    assert seen[0] == seen[1]


@pytest.mark.usefixtures("store")
def test_a_rank_that_is_not_the_first_proposes_nothing() -> None:
    first, second = two_ranks("second")
    second.propose("b", from_step=1)
    assert (first.at(5), second.at(5)) == ("a", "a")


def test_several_ranks_without_a_store_keep_what_they_began_with() -> None:
    first, second = two_ranks("lonely")
    first.propose("b", from_step=1)
    assert (first.at(9), second.at(9)) == ("a", "a")
    assert share_text("lonely", "mine", rank=1, wait_s=0.01) == "mine"


class GoneStore:
    """What torch's store does when its server has left."""

    def __getattr__(self, name: str) -> object:
        def fail(*arguments: object) -> None:
            raise dist.DistNetworkError("Connection reset by peer")

        return fail


def test_a_store_that_is_gone_leaves_everything_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", GoneStore)
    monkeypatch.setattr("forgather_mem.system.rank_store._ASKER", _Asker())  # the other one may have met a slow store
    first, second = two_ranks("gone")
    first.propose("b", from_step=1)
    assert (first.at(9), second.at(9)) == ("a", "a")


@pytest.mark.usefixtures("store")
def test_what_rank_0_says_is_heard_and_nobody_waits_long_for_it() -> None:
    assert share_text("said", "rank 0's", rank=0) == "rank 0's"
    assert share_text("said", "mine", rank=1) == "rank 0's"
    assert share_text("silent", "mine", rank=1, wait_s=0.1) == "mine"
