"""What no name leads to is compared with what there was, by where it stands."""

import gc

import pytest

from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.heap.unreached import Mark, Unreached, all_containers, garbage_among, lead_to

pytestmark = pytest.mark.alone(forked=True)


def test_lists_of_the_walks_themselves_are_none_that_grow() -> None:
    then, walk = Unreached(ReachableGraph(), []), ReachableGraph()
    # As if they had got the places of lists that were shorter
    then._ids.extend(map(id, vars(walk).values()))
    then._lengths.extend([0] * len(vars(walk)))
    for one in (walk.nodes, walk._above):
        one.extend(range(1000))
    assert not {id(walk.nodes), id(walk._above)} & {id(thing) for thing, _ in then.grown(walk, all_containers(), 900)}


def test_what_hangs_on_an_object_of_ours_is_nobodys_leak() -> None:
    ours, walk = ReachableGraph(), ReachableGraph()
    assert not lead_to(ours.nodes, walk, set())


class Node:
    def __init__(self) -> None:
        self.me: object = None


def test_cycles_that_wait_for_a_collection_are_told_from_what_lives(uncollected: None) -> None:
    mark, alive = Mark(), [Node() for _ in range(5)]
    for _ in range(7):
        node = Node()
        node.me = node
    del node
    young = mark.younger()
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
