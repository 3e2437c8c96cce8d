"""What no name leads to is compared with what there was, by where it stands."""

import pytest

from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.heap.unreached import Unreached

pytestmark = pytest.mark.alone(forked=True)


def test_lists_of_the_walks_themselves_are_none_that_grow() -> None:
    then, walk = Unreached(ReachableGraph()), ReachableGraph()
    # As if they had got the places of lists that were shorter
    then._ids.extend(map(id, vars(walk).values()))
    then._lengths.extend([0] * len(vars(walk)))
    for one in (walk.nodes, walk._above):
        one.extend(range(1000))
    assert not {id(walk.nodes), id(walk._above)} & {id(thing) for thing, _ in then.grown(walk, 900)}
