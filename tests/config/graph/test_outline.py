"""Graphs as a tree."""

from forgather_mem.config.graph.nodes import tree
from tests.config.graph.graphs import build_the_same, graph


def test_a_chain_of_2000_nodes_is_shown():
    assert len(list(tree(graph("x: " + "[" * 2000 + "]" * 2000, depth=3000)))) == 2000


def test_shared_levels_are_shown_once():
    found = graph("l0: &l0 [1, 2]\n" + "\n".join(f"l{i}: &l{i} [*l{i - 1}, *l{i - 1}]" for i in range(1, 18)))
    lines = list(tree(found))
    assert len(lines) < 100
    assert lines[3:5] == [(0, "l1", "list of 2", ""), (1, "[0]", "list of 2", "the same as $.l0")]


def test_the_tree_shows_values_places_and_what_is_redeclared():
    found = graph("cb: !dlist:@cb\n  gc: 1\n  tb: !singleton:my:C {a b: x, args: 2}\n  gc: !partial:f [~]\nn: !var q\n")
    assert list(tree(found)) == [
        (0, "cb", "!dlist @cb", ""),
        (1, "gc", "!partial:f", "redeclared, first at t.yaml:2:3"),
        (2, "[0]", "null", ""),
        (1, "tb", "!singleton:my:C", ""),
        (2, "['a b']", "'x'", ""),
        (2, "args", "2", ""),
        (0, "n", "!var q", ""),
    ]
    assert [branch[1] for branch in tree(found, ["n"])] == ["n"]
    assert list(tree(graph("5"))) == [(0, "$", "5", "")]


DIFFERENT = """[[1], [1]]
[&a [1], *a]
[!list [1], [1]]
[!list:@n [1], [1]]
[[1], [1.0]]
[[1], [true]]
[[1], [~]]
[!singleton:f [1], [1]]
[!factory:f [1], [1]]
[!singleton:g [1], [1]]
[!singleton:f {a: 1}, [1]]
[!singleton:f {b: 1}, [1]]
[!singleton:f {latent_args: {}}, [1]]
[!singleton:f {submodule_searchpath: x}, [1]]
[!var x, [1]]
[!var {name: x, default: ~}, [1]]
[{a: 1}, [1]]
[{1: 1}, [1]]
[{true: 1}, [1]]
[{a: 1, b: 2}, 1]
[{b: 2, a: 1}, 1]
1"""


def test_graphs_that_differ_in_anything_that_is_built_are_not_equal():
    texts = DIFFERENT.split("\n")
    found = [graph(text) for text in texts]
    for i, left in enumerate(found):
        for j, right in enumerate(found):
            assert build_the_same(left, right) == (i == j), (texts[i], texts[j])
    assert build_the_same(graph("[.nan]"), graph("[.NaN]"))
    assert graph("1") != 1
