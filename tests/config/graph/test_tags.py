"""The tags of the template language: what each makes, and how a call is given its arguments."""

import pytest

from forgather_mem.config.graph.nodes import NO_DEFAULT, CallNode, VarNode
from tests.config.graph.graphs import node, plain, refused


@pytest.mark.parametrize(
    ("tag", "kind"),
    [
        ("!singleton", "singleton"),
        ("!call", "singleton"),
        ("!factory", "factory"),
        ("!partial", "partial"),
        ("!lambda", "partial"),
        ("!meta", "meta"),
    ],
)
def test_a_call_has_its_kind_constructor_and_name(tag, kind):
    call = node(f"{tag}:torch.nn:Linear@head [2, 3]")
    assert isinstance(call, CallNode)
    assert (call.kind, call.constructor, call.name, call.args) == (kind, "torch.nn:Linear", "head", (2, 3))


@pytest.mark.parametrize("name", ["torch.randn", "dict", "getitem", "my/file.py:Class.make", "a:b.c", "/abs/x.py:C"])
def test_a_constructor_is_kept_as_written(name):
    assert node(f"!singleton:{name}").constructor == name


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("!listfoo [1]", "'!list'"), ("!Singleton:dict []", "'!singleton'"),
        ("!torch.nn:Linear [1]", "'!singleton:torch.nn:Linear'"), ("!vars x", "'!var'"),
    ],
)  # fmt: skip
def test_a_tag_counts_by_its_exact_name(text, near):
    error = refused(f"x: {text}")
    assert "unknown tag" in error.message
    assert near in error.hint
    assert (error.line, error.column, error.path) == (1, 4, "$.x")


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system [ls]", "!!python/name:os.system", "!!binary aGk=", "!!set {a, b}",
        "!!omap [a: 1]", "!!timestamp 2024-01-01", "!<tag:yaml.org,2002:python/none> x", "!!merge <<", "!!map []",
        "!!seq {}", "!!str [a]", "!!int {a: 1}",
    ],
)  # fmt: skip
def test_only_the_plain_standard_tags_exist(text):
    assert "is not part of the template language" in refused(f"x: {text}").message


def test_standard_tags_of_plain_types_convert():
    text = "[!!str 12, !!float 2, !!int '3', !!bool 'yes', !!null x, !!seq [1], !!map {a: 1}, ! 12]"
    assert plain(node(text)) == ["12", 2.0, 3, True, None, [1], {"a": 1}, 12]
    assert "is not a valid int" in refused("!!int two").message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("!factory:@name []", "does not say what to call"),
        ("!list:foo [1]", "'foo' has no meaning"),
        ("!list {a: 1}", "takes a sequence"),
        ("!dlist [1]", "takes a mapping"),
        ("!dict text", "this is text"),
        ("!tuple ' '", "this is text"),
        ("!var [x]", "takes a mapping"),
        ("!var {default: 1}", "does not say which variable"),
        ("!var {name: [x]}", "does not say which variable"),
        ("!var:@n x", "takes no @name"),
    ],
)
def test_a_tag_before_what_it_cannot_be_made_of_is_refused(text, said):
    assert said in refused(f"x: {text}").message


def test_lists_mappings_and_tuples_may_be_named_and_empty():
    assert (node("!list:@n [1]").name, node("!list@n [1]").name, node("!list [1]").name) == ("n", "n", None)
    for tag, form in (("!list", "list"), ("!tuple", "tuple")):
        empty = node(f"{tag}:@n")
        assert (empty.items, empty.form, empty.name) == ((), form, "n")
    for tag in ("!dict", "!dlist", "!dlist:"):
        assert node(tag).entries == {}


def test_a_variable_is_a_name_or_a_name_with_a_default():
    assert (node("!var lr").variable, node("!var lr").default) == ("lr", NO_DEFAULT)
    assert node('!var "lr"').variable == "lr"
    assert (node("!var {name: lr, default: ~}").default, node("!var {name: a, default: 2}").default) == (None, 2)
    assert isinstance(node("!var {name: a, default: !singleton:dict {}}").default, CallNode)
    error = refused("x: !var {name: a, defaul: 1}")
    assert (error.column, error.hint) == (19, "did you mean 'default'?")


def arguments(text):
    call = node(f"!singleton:f {text}")
    return [plain(value) for value in call.args], {key: plain(value) for key, value in call.kwargs.items()}


@pytest.mark.parametrize(
    ("text", "args", "kwargs"),
    [
        ("", [], {}), ("[]", [], {}), ("{}", [], {}), ("[1, [2]]", [1, [2]], {}),
        ("{a: 1, b: {c: 2}}", [], {"a": 1, "b": {"c": 2}}),
        ("{arg15: 15, b: 3, arg0: 0, arg5: 5}", [0, 5, 15], {"b": 3}), ("{arg10: 10, arg9: 9}", [9, 10], {}),
        ("{args: [1, 2], kwargs: {a: 3}}", [1, 2], {"a": 3}), ("{args: [1]}", [1], {}),
        ("{kwargs: {arg0: 1}}", [], {"arg0": 1}), ("{args: !list [1]}", [1], {}), ("{args: , kwargs: }", [], {}),
        ("{args: [1], kwargs: {a: 1}, b: 2}", [], {"args": [1], "kwargs": {"a": 1}, "b": 2}),
        ("{args: 1, model: 2}", [], {"args": 1, "model": 2}),
        ("{argument: 1, argv: 2, arg: 3, arg1x: 4}", [], {"argument": 1, "argv": 2, "arg": 3, "arg1x": 4}),
        ("hello", ["hello"], {}), ("5", [5], {}), ("'5'", ["5"], {}), ('""', [""], {}), ("~", [None], {}),
    ],
)  # fmt: skip
def test_arguments_by_position_by_name_or_both(text, args, kwargs):
    assert arguments(text) == (args, kwargs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{args: [1], kwrgs: {a: 1}}", "unknown key 'kwrgs'"), ("{arg: [1], kwargs: {a: 1}}", "unknown key 'arg'"),
        ("{args: 5}", "args is a list"), ("{args: {a: 1}}", "args is a list"),
        ("{kwargs: [a]}", "kwargs is a mapping"), ("{kwargs: !dlist {a: 1}}", "kwargs is a mapping"),
        ("{1: a}", "the name of an argument is text"), ("{kwargs: {1: a}}", "the name of an argument is text"),
        ("{submodule_searchpath: [1]}", "list of folders"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant_are_refused(text, said):
    assert said in refused(f"x: !singleton:f {text}").message


def test_the_two_special_keywords_are_taken_out():
    call = node("!singleton:f.py:C {submodule_searchpath: [a, b], latent_args: !var m, x: 1}")
    assert (call.searchpath, dict(call.kwargs)) == (("a", "b"), {"x": 1})
    assert isinstance(call.latent, VarNode)
    assert node("!singleton:f.py:C {kwargs: {submodule_searchpath: a}}").searchpath == ("a",)
