"""Graph to objects: what is built, when, how often, and what a mistake is answered with."""

import copy
import gc
import inspect
import json
import pickle
import textwrap
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.config.construction.construct import Construction
from forgather_mem.config.construction.resolve import Resolver
from forgather_mem.config.graph.nodes import CallNode
from forgather_mem.config.graph.parse import parse
from forgather_mem.config.limits import Limits
from forgather_mem.config.policy.policy import Policy
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.errors import TemplateError
from tests.config.construction.parts import build, construction, refused

# What is built


def test_plain_data_is_itself():
    assert build("a: [1, {b: ~}, 'c']") == {"a": [1, {"b": None}, "c"]}
    assert build("5") == 5
    assert build("") is None


def test_value_built_ins_need_no_leave(parts):
    text = """
        m: &m !singleton:dict {a: 1}
        items: !singleton:list [!singleton:items [*m]]
        keys: !singleton:list [!singleton:keys [*m]]
        sum: !singleton:sum [!singleton:values [*m]]
        item: !singleton:getitem [*m, a]
        deep: !singleton:parts_of_test:Inner.Deep.make
        delta: !singleton:datetime.timedelta {days: 1}
        called: !singleton:call [!partial:int ["11"], 2]
    """
    made = build(text)
    assert (made["items"], made["keys"], made["sum"], made["item"]) == ([("a", 1)], ["a"], 1, 1)
    assert (made["deep"], made["called"], made["delta"].days) == ("deep", 3, 1)


def test_values_are_built_depth_first_in_written_order_positional_first(parts):
    build("""
        .define: &late !singleton:parts_of_test:Part [define]
        x: !singleton:parts_of_test:Part
            k: !singleton:parts_of_test:Part [k, [!singleton:parts_of_test:Part [inner]]]
            arg1: !singleton:parts_of_test:Part [1]
            arg0: *late
            z: {deep: !singleton:parts_of_test:Part [z]}
    """)
    assert [args[0] if not isinstance(args[0], parts.Part) else "x" for args, _ in parts.made] == [
        "define", 1, "inner", "k", "z", "x",
    ]  # fmt: skip


def test_only_what_an_asked_target_reaches_is_built(parts):
    graph, built = construction(
        "a: !singleton:parts_of_test:zero\nb: !singleton:parts_of_test:fail\n.c: &c !singleton:nowhere:x"
    )
    assert built.build([graph.target("a")]) == [0]
    assert parts.made == ["zero"]


# How often


@pytest.mark.parametrize("function", ["nothing", "zero"])
def test_a_singleton_is_built_once_also_when_it_is_none_or_false(parts, function):
    it = build(f"a: &a !singleton:parts_of_test:{function}\nb: [*a, *a]\nc: !singleton:parts_of_test:Part {{x: *a}}\n")
    assert parts.made.count(function) == 1
    assert it["b"] == [it["a"], it["a"]]


def test_a_factory_is_built_in_each_place(parts):
    made = build("a: &a !factory:parts_of_test:Part [1]\nb: [*a, *a]\nc: !singleton:parts_of_test:Part [*a, *a]\n")
    every = [made["a"], *made["b"], *made["c"].args]
    assert len({id(part) for part in every}) == 5
    assert all(part == every[0] for part in every)


def test_a_list_with_a_factory_in_it_is_new_in_each_place_and_a_named_one_is_not(parts):
    text = "a: &a {l: [!factory:parts_of_test:Part []]}\nb: *a\nc: &c !list [!factory:parts_of_test:Part []]\nd: *c\n"
    made = build(text)
    assert made["a"] is not made["b"]
    assert made["a"]["l"][0] is not made["b"]["l"][0]
    assert made["c"] is made["d"]


def test_an_alias_of_a_list_is_the_same_list():
    made = build("a: &a [1]\nb: *a\nc: {d: *a}\n")
    assert made["a"] is made["b"] is made["c"]["d"]


DATA = st.recursive(
    st.none() | st.integers() | st.text(st.characters(exclude_categories=["C", "Z"]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@given(DATA, st.sampled_from(["!singleton:dict", "!dict", "!factory:dict", ""]))
def test_building_twice_gives_equal_and_distinct_objects(data, tag):
    graph = parse(Rendered.as_is(f"x: {tag}\n  v: {json.dumps(data, ensure_ascii=False)}\n"))
    first, second = (Construction(Resolver(graph, Policy(), {})).build([graph.root])[0] for _ in range(2))
    assert first == second == {"x": {"v": data}}
    containers = [list(_containers(value)) for value in (first, second)]
    assert not set(map(id, containers[0])) & set(map(id, containers[1]))


def _containers(value):
    if isinstance(value, dict | list):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _containers(part)


# Variables


def test_a_variable_comes_from_outside_else_from_its_default():
    text = """
        a: !var {name: x, default: [1]}
        b: !var {name: y, default: ~}
        c: !var {name: z, default: !singleton:dict {d: 1}}
    """
    assert build(text) == {"a": [1], "b": None, "c": {"d": 1}}
    live = object()
    assert build(text, x=live, y=0)["a"] is live
    assert build(text, x=None, y=0) == {"a": None, "b": 0, "c": {"d": 1}}


# Partials


def test_a_partial_appends_positions_and_merges_names(parts):
    made = build("p: !partial:parts_of_test:Part {arg0: 1, a: 2, b: 3}")["p"]
    assert (made(5, b=4, c=6).args, made(5, b=4, c=6).kwargs) == ((1, 5), {"a": 2, "b": 4, "c": 6})
    assert made() is not made()


def test_a_partial_inside_a_partial_is_passed_on_uncalled(parts):
    outer = build("p: !partial:parts_of_test:Part [!partial:parts_of_test:zero []]")["p"]
    inner = outer().args[0]
    assert parts.made.count("zero") == 0
    assert inner() == 0


def test_an_object_that_holds_a_partial_is_freed_without_the_collector(parts, uncollected):
    text = "t: !singleton:parts_of_test:Part [!partial:parts_of_test:Part [&s !singleton:parts_of_test:Part []], *s]"
    made = build(text)["t"]
    made.args[0]()
    parts.made.clear()
    gone = weakref.ref(made)
    del made
    assert gone() is None


def test_a_partial_says_what_may_still_be_given(parts):
    made = build("p: !partial:parts_of_test:Strict {lr: 1}")["p"]
    assert list(inspect.signature(made).parameters) == ["lr", "momentum", "nesterov"]
    assert repr(made) == "<!partial:parts_of_test:Strict at t.yaml:1:4>"
    assert made(momentum=2).lr == 1


def test_what_a_partial_calls_may_raise_its_own_exceptions(parts):
    made = build("p: !partial:parts_of_test:fail\nq: !partial:parts_of_test:Part [!singleton:parts_of_test:fail []]")
    with pytest.raises(KeyError) as caught:
        made["p"]("key")
    assert caught.value.__notes__ == ["in parts_of_test:fail, a !partial at t.yaml:1:4"]
    with pytest.raises(TemplateError, match=r"ValueError: no good"):
        made["q"]()


def test_a_wrong_argument_of_a_partial_is_an_error_of_ours(parts):
    made = build("p: !partial:parts_of_test:Strict")["p"]
    with pytest.raises(TemplateError, match="missing argument 'lr' of parts_of_test:Strict"):
        made()
    with pytest.raises(TemplateError, match="unknown argument 'x'"):
        made(1, x=2)
    assert "unknown argument 'x'" in refused("p: !partial:parts_of_test:Strict {x: 1}").message


# Files


def test_a_file_is_imported_when_its_call_comes(parts, tmp_path):
    (tmp_path / "written.py").write_text("def add(a, b=0):\n    return a + b\n")
    policy = Policy(allow=["parts_of_test"], allow_files=[tmp_path / "written.py"])
    assert build("x: !singleton:written.py:add {a: 2, b: 3}", policy) == {"x": 5}
    error = refused("x: !singleton:written.py:add {a: 2, c: 3}", policy)
    assert "unknown argument 'c' of written.py:add" in error.message
    with pytest.raises(TemplateError, match=r"written\.py:add' is not on the allow list"):
        build("x: !singleton:written.py:add {a: 2}")


# Mistakes


def test_an_exception_of_a_constructor_is_the_cause_of_ours(parts):
    error = refused("cb:\n  - !singleton:parts_of_test:fail\n    - ValueError\n    - 2\n")
    assert error.message == "parts_of_test:fail raised ValueError: no good; its arguments were error, args[1]"
    assert isinstance(error.__cause__, ValueError)
    assert (error.line, error.column, error.path) == (2, 5, "$.cb[0]")
    assert (
        "raised TypeError: object of type 'int' has no len()"
        in refused("x: !call:parts_of_test:takes_type {x: 1}").message
    )


@pytest.mark.parametrize(("what", "kind"), [("memory", MemoryError), ("stop", StopIteration), ("key", KeyError)])
def test_every_exception_becomes_ours(parts, what, kind):
    assert type(refused(f"x: !singleton:parts_of_test:fail {what}").__cause__) is kind


def test_endless_recursion_and_errors_that_cannot_be_printed_become_ours(parts):
    assert isinstance(refused("x: !singleton:parts_of_test:recurse").__cause__, RecursionError)
    assert "Unprintable" in refused("x: !singleton:parts_of_test:fail bad").message


@pytest.mark.parametrize(("what", "kind"), [("exit", SystemExit), ("ctrl-c", KeyboardInterrupt)])
def test_an_exit_passes(parts, what, kind):
    with pytest.raises(kind):
        build(f"x: !singleton:parts_of_test:fail {what}")


def test_a_module_that_raises_while_it_is_imported_is_an_error_of_ours(parts, tmp_path):
    (tmp_path / "broken_of_test.py").write_text("raise RuntimeError('broken at import')\n")
    error = refused("x: !singleton:broken_of_test:f", Policy(allow=["broken_of_test"]))
    assert error.message == "importing broken_of_test:f raised RuntimeError: broken at import"
    assert isinstance(error.__cause__, RuntimeError)
    assert error.path == "$.x"


# Size


def test_an_error_at_the_end_of_a_chain_of_2000_has_the_begin_of_its_path(parts):
    text = "x: " + "[" * 2000 + "!singleton:parts_of_test:fail []" + "]" * 2000
    error = refused(text, budgets=Limits(depth=5000))
    assert error.path.startswith("$.x" + "[0]" * 130)
    assert len(str(error)) < 2_000


def test_a_partial_builds_its_own_arguments_when_it_is_called(parts):
    text = """
        once: &once !singleton:parts_of_test:Part [once]
        p: !partial:parts_of_test:Part
            - *once
            - !factory:parts_of_test:Part [each]
            - [list]
            - &named !list [named]
            - !singleton:parts_of_test:Part [late]
    """
    made = build(text)
    assert [args[0] for args, _ in parts.made] == ["once"]
    first, second = made["p"](), made["p"]()
    assert first.args[0] is second.args[0] is made["once"]
    assert first.args[1] is not second.args[1]
    assert first.args[2] is not second.args[2]
    assert first.args[3] is second.args[3]
    assert first.args[4] is second.args[4]


def test_two_partials_and_a_later_target_share_a_singleton(parts):
    text = """
        a: !partial:parts_of_test:Part [&s !singleton:parts_of_test:zero []]
        b: !partial:parts_of_test:Part [*s]
        c: [*s]
    """
    graph, built = construction(text)
    a, b = built.build([graph.target("a"), graph.target("b")])
    assert (a().args, b().args) == ((0,), (0,))
    assert built.build([graph.target("c")]) == [[0]]
    assert parts.made.count("zero") == 1


def test_a_partial_may_be_called_while_the_rest_is_built(parts):
    made = build("""
        s: &s !singleton:parts_of_test:zero
        now: !singleton:call [!partial:parts_of_test:Part [*s, !partial:parts_of_test:Part [*s]]]
    """)
    assert made["now"].args[1]().args == (0,)
    assert parts.made.count("zero") == 1


def test_a_partial_keeps_alive_only_what_its_arguments_name(parts):
    class Big:
        pass

    big = Big()
    graph, built = construction(
        "m: &m !singleton:parts_of_test:Part [!var big]\np: !partial:parts_of_test:Part [!var small]", big=big, small=1
    )
    model, partial = built.build([graph.target("m"), graph.target("p")])
    gone = weakref.ref(big)
    del built, big, model
    parts.made.clear()
    gc.collect()
    assert gone() is None
    assert partial().args == (1,)


def test_a_partial_can_be_pickled_and_copied_with_its_singletons(parts):
    text = "p: !partial:parts_of_test:Part [&s !singleton:dict {a: 1}, *s, !var v]\nother: *s"
    made = build(text, v=(1, 2), unused=lambda: None)
    for twin in (pickle.loads(pickle.dumps(made["p"])), copy.deepcopy(made["p"]), copy.copy(made["p"])):
        args = twin(7).args
        assert args == ({"a": 1}, {"a": 1}, (1, 2), 7)
        assert args[0] is args[1] is twin().args[0]
    assert copy.copy(made["p"])().args[0] is made["other"]


def test_a_dlist_overrides_in_place_and_erases():
    assert build("x: !dlist {foo: 1, bar: 2, baz: 3, bax: 4, bar: ~, foo: 3}") == {"x": [3, 3, 4]}
    assert build("x: !dlist {null: ~}") == {"x": []}


def test_a_variable_that_is_null_stays_in_a_dlist():
    assert build("x: !dlist {a: !var v}", v=None) == {"x": [None]}


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
