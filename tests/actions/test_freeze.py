import gc
from collections.abc import Iterator

import pytest

from forgather_mem.actions.freeze import HeapHold
from forgather_mem.testing.small_run import in_child
from tests.reclaim.things import Cycle

pytestmark = pytest.mark.alone


@pytest.fixture(autouse=True)
def same_collector_afterwards(unfrozen: None) -> Iterator[None]:
    yield
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.fixture
def hold() -> Iterator[HeapHold]:
    hold = HeapHold()
    hold.take()
    yield hold
    hold.give_back()


def is_seen(node: object) -> bool:
    """Whether the collector looks at it."""
    return any(seen is node for seen in gc.get_objects())


def test_freezing_more_hides_what_came_since_and_is_still_known_as_ours(hold: HeapHold) -> None:
    hold.renew()
    node = Cycle()
    hold.freeze_more()
    assert not is_seen(node)
    assert not hold.foreign
    hold.give_back()
    assert is_seen(node)


@pytest.mark.parametrize("when", ["before", "in the middle", "in the middle, when some frozen objects have died"])
def test_what_somebody_else_has_frozen_stays_frozen(when: str) -> None:
    dying = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    hold = HeapHold()
    if when == "before":
        gc.freeze()
    hold.take()
    hold.renew()
    dying.clear()
    if when == "in the middle":
        dying += [[] for _ in range(2000)]
    theirs = Cycle()
    gc.freeze()
    try:
        hold.renew()
        hold.freeze_more()
        hold.give_back()
        assert hold.foreign
        assert not is_seen(theirs)
    finally:
        gc.unfreeze()


def test_somebody_elses_unfreeze_is_not_taken_for_a_freeze(hold: HeapHold) -> None:
    hold.renew()
    gc.unfreeze()
    hold.renew()
    assert not hold.foreign
    assert gc.get_freeze_count() > 0


def test_without_freezing_automatic_collection_alone_is_off() -> None:
    hold = HeapHold(freeze=False)
    hold.take()
    hold.renew()
    hold.freeze_more()
    assert (gc.isenabled(), gc.get_freeze_count()) == (False, 0)
    hold.give_back()


def test_a_forked_worker_collects_automatically_again(hold: HeapHold) -> None:
    assert in_child(lambda: str(gc.isenabled())) == "True"
    assert not gc.isenabled()
