"""Built objects in the place of nodes: lists, mappings, and arguments."""

import textwrap

from forgather_mem.config.graph.nodes import CallNode
from tests.config.construction.parts import build, refused


def test_lists_tuples_dicts_and_dlists():
    text = "a: !list [1]\nb: !tuple [1, 2]\nc: !dict {1: x}\nd: !dlist {a: 1, b: ~, c: 3}\n"
    text += "e: !tuple\nf: !list\ng: !dict\nh: !dlist"
    expected = {"a": [1], "b": (1, 2), "c": {1: "x"}, "d": [1, 3], "e": (), "f": [], "g": {}, "h": []}
    assert build(text) == expected


def test_a_dlist_overrides_in_place_and_erases():
    assert build("x: !dlist {foo: 1, bar: 2, baz: 3, bax: 4, bar: ~, foo: 3}") == {"x": [3, 3, 4]}
    assert build("x: !dlist {null: ~}") == {"x": []}


def test_a_variable_that_is_null_stays_in_a_dlist():
    assert build("x: !dlist {a: !var v}", v=None) == {"x": [None]}


def test_arguments_by_position_and_by_name(parts):
    made = build("x: !singleton:parts_of_test:Part {arg1: 1, a: [2], arg0: {b: 0}}")["x"]
    assert (made.args, made.kwargs) == (({"b": 0}, 1), {"a": [2]})


def test_a_scalar_argument_is_one_argument(parts):
    assert build("x: !singleton:parts_of_test:Part hello")["x"].args == ("hello",)
    assert build("x: !call:len hello") == {"x": 5}


def test_a_meta_call_gets_its_arguments_as_nodes(parts):
    args, kwargs = build("x: !meta:parts_of_test:nodes {arg0: !singleton:.not.a:name [], k: [!var unbound]}")["x"]
    assert isinstance(args[0], CallNode)
    assert args[0].constructor == ".not.a:name"
    assert kwargs["k"][0].variable == "unbound"
    assert build("x: !meta:parts_of_test:nodes {a: 1, latent_args: !var unbound}")["x"] == ((), {"a": 1})


def test_a_meta_call_gets_plain_lists_and_mappings_with_nodes_in_them(parts):
    text = """
        x: !meta:parts_of_test:nodes
            arg0: &shared [1, !call:len [[]], [2, {a: !tuple [3, !var v]}]]
            named: !list:@some [*shared, !dlist {a: 1, b: ~, c: !var w}, !dict {}, !list '']
            again: *shared
    """
    ((first,), kwargs) = build(textwrap.dedent(text))["x"]
    assert (type(first), len(first), first[0]) == (list, 3, 1)
    assert isinstance(first[1], CallNode)
    assert first[2][0] == 2
    assert type(first[2][1]["a"]) is tuple
    assert first[2][1]["a"][1].variable == "v"
    assert kwargs["again"] is first is kwargs["named"][0]  # as an alias is one object in each of its places
    assert (kwargs["named"][1][0], kwargs["named"][1][1].variable) == (1, "w")
    assert kwargs["named"][2:] == [{}, []]


def test_a_meta_call_goes_through_a_long_chain_of_aliases(parts):
    chain = "".join(f".a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 5_000))
    ((last,), _) = build(f".a0: &a0 [1]\n{chain}x: !meta:parts_of_test:nodes [*a4999]\n")["x"]
    depth = 0
    while isinstance(last, list):
        (last,) = last
        depth += 1
    assert (depth, last) == (5_000, 1)


def test_an_empty_text_after_a_list_or_mapping_is_nothing():
    assert build("a: !list ''\nb: !tuple ''\nc: !dict ''\nd: !dlist \"\"") == {"a": [], "b": (), "c": {}, "d": []}
    assert build("a: !call:str ''") == {"a": ""}


def test_latent_args_are_built_last_and_merged_over_the_others(parts):
    text = "x: !singleton:parts_of_test:Part {a: 1, b: 2, latent_args: !var {name: more, default: &d {b: 3}}}"
    assert build(text)["x"].kwargs == {"a": 1, "b": 3}
    assert build(text, more={"c": 4})["x"].kwargs == {"a": 1, "b": 2, "c": 4}
    error = refused(text, more=[1])
    assert "latent_args of parts_of_test:Part is a mapping; here it is of type list" in error.message
    assert error.column == 47
