"""The graph as data: marks, paths, walks."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.config.graph import nodes
from forgather_mem.config.source.rendered import SourceLocation
from tests.config.graph.graphs import build_the_same, graph

TEXT = """\
.define: &d !singleton:f [&inner [1]]
a: [*d, {b c: &x !var {name: v, default: &deep !factory:g {k: []}}}]
k: !partial:h
    args: [*x, 2]
    kwargs: {7th: *deep}
    """


@given(st.integers(1, 5_000_000), st.integers(1, 4_000_000))
def test_a_mark_holds_any_line_and_column_of_a_template(line, column):
    assert nodes.line_and_column(nodes.mark_at(line, column)) == (line, column)


def test_marks_stand_in_the_order_of_the_text():
    assert nodes.mark_at(1, 80) < nodes.mark_at(2, 1) < nodes.mark_at(2, 2)


def test_every_node_has_a_path_by_targets_first():
    found = graph(TEXT)
    paths = nodes.Paths(found)
    by_path = {paths.of(node): type(node).__name__ for node in nodes.walk_nodes([found.root])}
    assert by_path == {
        "$": "DictNode",
        "$.a": "ListNode",
        "$.a[0]": "CallNode",
        "$.a[0][0]": "ListNode",
        "$.a[1]": "DictNode",
        "$.a[1]['b c']": "VarNode",
        "$.a[1]['b c'].default": "CallNode",
        "$.a[1]['b c'].default.k": "ListNode",
        "$.k": "CallNode",
    }


def test_what_only_a_definition_leads_to_has_the_path_of_the_definition():
    found = graph(".define: {x: [&a [1]]}\nb: 1\n")
    (_, value) = found.definitions[0]
    assert nodes.Paths(found).of(value.entries["x"].items[0]) == "$['.define'].x[0]"
    assert nodes.Paths(found).of(nodes.ListNode(mark=0)) is None


def test_a_walk_sees_shared_nodes_once_in_written_order():
    found = graph("a: &a [1]\nb: [*a, &c [2, *a]]\nd: *c\n")
    assert [nodes.line_and_column(node.mark) for node in nodes.walk_nodes([found.root])] == [
        (1, 1),
        (1, 4),
        (2, 4),
        (2, 9),
    ]


def test_a_walk_goes_where_it_is_told():
    found = graph("a: [!partial:f [!singleton:g []]]\n")
    seen = list(nodes.walk_nodes([found.root], lambda node: () if isinstance(node, nodes.CallNode) else node.children))
    assert [node.constructor for node in seen if isinstance(node, nodes.CallNode)] == ["f"]


def test_the_parts_of_a_node_come_with_their_steps():
    assert [way for way, _ in nodes.edges(graph(TEXT).target("k"))] == ["[0]", "[1]", "['7th']"]
    assert list(nodes.edges(5)) == []
    assert [nodes.step(key) for key in ("gc", "a.b", 3, None)] == [".gc", "['a.b']", "[3]", "[None]"]


def test_a_place_is_found_through_the_source_map_or_in_the_text_itself():
    assert str(graph("a: [1]").place(nodes.mark_at(1, 4))) == "t.yaml:1:4"
    assert nodes.Graph(root=1).place(nodes.mark_at(3, 4)) == SourceLocation("<graph>", 3, 4)


def test_a_graph_is_frozen():
    found = graph("a: [1]")
    with pytest.raises(AttributeError):
        found.root = None


def test_nodes_can_be_pickled_and_stay_equal():
    found = graph(TEXT)
    twin = nodes.Graph(root=pickle.loads(pickle.dumps(found.root)))
    assert build_the_same(twin, found)
    assert pickle.loads(pickle.dumps(nodes.NO_DEFAULT)) is nodes.NO_DEFAULT
