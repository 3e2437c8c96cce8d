"""Garbage is told from what lives, without a collection."""

import gc

from forgather_mem.heap.garbage import Mark, garbage_among
from tests.programs import no_collections


class Node:
    def __init__(self) -> None:
        self.me: object = None


def test_cycles_that_wait_for_a_collection_are_told_from_what_lives() -> None:
    with no_collections():
        mark, alive = Mark(), [Node() for _ in range(5)]
        for _ in range(7):
            node = Node()
            node.me = node
        del node
        young = mark.younger()
        assert young is not None
        garbage = garbage_among(young)
        assert sum(type(thing) is Node for thing in garbage) == 7
        assert len(alive) == 5
        mark.drop()
        del young, garbage
        assert gc.collect() >= 7, "looking has kept nothing"


def test_after_a_full_collection_nothing_is_claimed() -> None:
    mark = Mark()
    gc.collect()
    assert mark.younger() is None
    mark.drop()
