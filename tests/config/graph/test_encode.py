"""Graphs as YAML and as a tree."""

import datetime

import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from forgather_mem.config.graph.encode import Branch, encode, tree
from forgather_mem.config.graph.nodes import Graph, mark_at
from forgather_mem.config.graph.tags import Tag, TemplateNodeError, mapping_node, sequence_node
from forgather_mem.config.source.syntax import FORMS
from tests.config.graph.graphs import build_the_same, graph

HERE = mark_at(1, 1)


ODD = (
    "yes", "1", "1e5", "~", "<<", "", " a", "a\n", "\n", "a\n\n b ", "- x", "a: b", "#", "a #b", "null", "=",
    "2024-01-01", "1:30", "\x85", "\u2028", "\ufeff", "'", '"', "!x", "&x", "*x", "%", "@", "`", "|", ">",
    "arg0", "args", "kwargs", "a" * 2000,
)  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(ODD)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    TEXT,
    st.dates(datetime.date(1, 1, 1)),
    st.datetimes(datetime.datetime(1, 1, 1), timezones=st.none() | st.just(datetime.UTC)),
)
WORDS = ("singleton", "factory", "partial", "meta", *FORMS, None)
CONSTRUCTORS = st.sampled_from(["dict", "a.b:c.d", "x/y.py:Z", "/abs/x-1.py:Z", "torch.randn"]) | st.text(
    "ab{}:.%/!\u00e9 ~*'()", min_size=1, max_size=6
)


@st.composite
def graphs(draw):
    """A mapping of nodes, each made of scalars and of earlier nodes, so that many are shared."""
    made = []
    for i in range(draw(st.integers(1, 7))):
        values = st.sampled_from(made) | SCALARS if made else SCALARS
        word = draw(st.sampled_from(WORDS))
        name = draw(st.none() | st.just(f"n{i}")) if word not in (None, "var") else None
        constructor = draw(CONSTRUCTORS) if word not in (*FORMS, None) else ""
        tag = None if word is None else Tag(word, constructor, name)
        try:
            made.append(draw_node(draw, tag, values))
        except TemplateNodeError:
            assume(False)
    entries = {f"t{i}": node for i, node in enumerate(made) if draw(st.booleans())}
    return Graph(root=draw(st.sampled_from([mapping_node(None, HERE, entries, {}), made[-1]])))


def draw_node(draw, tag, values):
    if tag is not None and tag.word == "var":
        entries = {"name": draw(TEXT.filter(bool)), **draw(st.fixed_dictionaries({}, optional={"default": values}))}
        return mapping_node(tag, HERE, entries, {})
    if tag is not None and tag.word not in FORMS and draw(st.booleans()):
        args = sequence_node(None, HERE, draw(st.lists(values, max_size=3)))
        kwargs = mapping_node(None, HERE, draw(st.dictionaries(TEXT, values, max_size=3)), {})
        latent = draw(st.fixed_dictionaries({}, optional={"latent_args": values, "submodule_searchpath": TEXT}))
        kwargs = mapping_node(None, HERE, {**kwargs.entries, **latent}, {})
        return mapping_node(tag, HERE, {"args": args, "kwargs": kwargs}, {})
    if (tag is not None and tag.word in ("dict", "dlist")) or (tag is None and draw(st.booleans())):
        return mapping_node(tag, HERE, draw(st.dictionaries(SCALARS.filter(lambda s: s == s), values, max_size=3)), {})
    return sequence_node(tag, HERE, draw(st.lists(values, max_size=3)))


@given(graphs())
def test_a_graph_written_as_yaml_parses_to_an_equal_graph(original):
    assert build_the_same(graph(encode(original)), original)


def test_the_yaml_of_a_template_is_what_a_person_would_write():
    found = graph(
        "w: &writer !call:torch.utils.tensorboard:SummaryWriter [runs]\n"
        "cb: !list:@cb\n  - !singleton:my:Logger {args: [*writer], kwargs: {lr: 1e-5, name: 'yes'}}\n  - *writer\n"
        "v: !var {name: x, default: [1, ~]}\nf: !singleton:a.py:B {submodule_searchpath: [x], latent_args: !var y}\n"
        "e: [!list , !dict , !tuple:@t , {}, []]\n"
    )
    assert (
        encode(found)
        == """\
w: &a1 !singleton:torch.utils.tensorboard:SummaryWriter
- runs
cb: !list:@cb
- !singleton:my:Logger
  args:
  - *a1
  kwargs:
    lr: 1.0e-05
    name: 'yes'
- *a1
v: !var
  name: x
  default:
  - 1
  - null
f: !singleton:a.py:B
  latent_args: !var
    name: y
  submodule_searchpath:
  - x
e:
- !list []
- !dict {}
- !tuple:@t []
- {}
- []
"""
    )


def test_yaml_without_our_tags_reads_the_same_by_pyyaml():
    text = "a: {b: [1, 1e-4, ~, 'off', on, 2024-01-01, .inf, 'a: b', \"l1\\nl2\\n\"]}"
    found = graph(text)
    data = yaml.safe_load(encode(found))
    assert data == {
        "a": {"b": [1, 1e-4, None, "off", True, datetime.date(2024, 1, 1), float("inf"), "a: b", "l1\nl2\n"]}
    }


def test_only_the_asked_targets_are_written():
    found = graph("a: &x [1]\nb: [*x]\nc: 3\n")
    assert encode(found, ["b", "c"]) == "b:\n- - 1\nc: 3\n"


def test_a_chain_of_2000_nodes_is_written_and_shown():
    found = graph("x: " + "[" * 2000 + "]" * 2000, depth=3000)
    assert build_the_same(graph(encode(found), depth=3000, rendered_bytes=2**30), found)
    assert len(list(tree(found))) == 2000


def test_shared_levels_are_written_and_shown_once():
    found = graph("l0: &l0 [1, 2]\n" + "\n".join(f"l{i}: &l{i} [*l{i - 1}, *l{i - 1}]" for i in range(1, 18)))
    assert len(encode(found)) < 2_000
    lines = list(tree(found))
    assert len(lines) < 100
    assert lines[3:5] == [
        Branch(0, "l1", "list of 2", mark_at(2, 1), ""),
        Branch(1, "[0]", "list of 2", mark_at(1, 5), "the same as $.l0"),
    ]


def test_the_tree_shows_values_places_and_what_is_redeclared():
    found = graph("cb: !dlist:@cb\n  gc: 1\n  tb: !singleton:my:C {a b: x, args: 2}\n  gc: !partial:f [~]\nn: !var q\n")
    assert list(tree(found)) == [
        Branch(0, "cb", "!dlist @cb", mark_at(1, 1), ""),
        Branch(1, "gc", "!partial:f", mark_at(4, 3), "redeclared, first at t.yaml:2:3"),
        Branch(2, "[0]", "null", None, ""),
        Branch(1, "tb", "!singleton:my:C", mark_at(3, 3), ""),
        Branch(2, "['a b']", "'x'", mark_at(3, 24), ""),
        Branch(2, "args", "2", mark_at(3, 32), ""),
        Branch(0, "n", "!var q", mark_at(5, 1), ""),
    ]
    assert [branch.label for branch in tree(found, ["n"])] == ["n"]
    assert list(tree(graph("5"))) == [Branch(0, "$", "5", None, "")]


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
