"""Objects that the collector hides are found after each freeze, and forgotten when they are gone."""

import gc
from collections.abc import Iterator

import pytest

from forgather_mem.probes.live_objects import live_objects

pytestmark = pytest.mark.alone  # a heap that is walked in no time


class Thing:
    pass


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def is_found(*things: Thing) -> bool:
    return sorted(map(id, live_objects(Thing))) == sorted(map(id, things))


@pytest.mark.slow
def test_frozen_before_and_after_a_look_and_thawed_it_is_found_once() -> None:
    first = Thing()
    gc.freeze()
    assert is_found(first)
    second = Thing()
    assert is_found(first, second)
    gc.freeze()
    assert is_found(first, second)
    gc.unfreeze()
    assert is_found(first, second)
    gc.freeze()
    third = Thing()
    assert is_found(first, second, third)


def test_what_is_gone_is_not_found_although_it_was_frozen() -> None:
    things = [Thing(), Thing()]
    gc.freeze()
    assert is_found(*things)
    del things[0]
    assert is_found(*things)
