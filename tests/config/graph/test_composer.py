"""Events to nodes: keys, anchors, aliases, names, documents, and their limits."""

import datetime
import re
import time

import pytest
import yaml

from forgather_mem.config.graph.nodes import Redeclared, mark_at
from forgather_mem.errors import TemplateError
from tests.config.graph.graphs import MERGES, TOKEN, graph, node, plain, refused, root, with_value


def test_a_redeclared_key_wins_in_the_place_of_the_first_and_is_remembered():
    found = graph("x: !dlist\n  a: 1\n  b: 2\n  a: 3\n")
    assert list(found.target("x").entries.items()) == [("a", 3), ("b", 2)]
    assert found.redeclared == [Redeclared("a", mark_at(4, 3), mark_at(2, 3), found.target("x"))]


def test_root_keys_with_a_dot_are_no_targets_and_may_repeat():
    found = graph(".define: &a [1]\n.define: &b [2]\nmain: [*a, *b]\n")
    assert (found.targets, plain(found.root)) == (("main",), {"main": [[1], [2]]})
    assert [key for key, _ in found.definitions] == [".define", ".define"]
    assert not found.redeclared
    assert plain(node("{.inner: 1}")) == {".inner": 1}


def test_an_alias_is_the_same_node():
    found = root("a: &x [1]\nb: *x\n")
    assert found.entries["a"] is found.entries["b"]


def test_an_anchor_may_be_given_again_and_the_last_one_counts_from_there_on():
    found = graph("a: &x 1\nb: *x\nc: &x 2\nd: *x\n")
    assert plain(found.root) == {"a": 1, "b": 1, "c": 2, "d": 2}


@pytest.mark.parametrize("text", ["a: &x [*x]", "a: &x {b: *x}", "a: &x !singleton:f {b: [*x]}", "a: &x {<<: *x}"])
def test_an_alias_inside_what_it_means_is_refused(text):
    assert "refers to what contains it" in refused(text).message


def test_an_unknown_alias_is_answered_with_the_nearest_anchor():
    assert refused("a: &summary_writer 1\nb: *summary_writr").hint == "did you mean '*summary_writer'?"


@pytest.mark.parametrize("key", ["[1]", "{a: 1}", "!singleton:f []", "? [1]\n"])
def test_a_key_is_a_scalar(key):
    assert "a key is a scalar" in refused(f"{{{key} : 1}}" if "?" not in key else f"{key}: 1").message


def test_keys_may_be_any_scalar():
    assert plain(node("{1: a, ~: b, 2.5: c, off: d, 2024-01-01: e}")) == {
        1: "a", None: "b", 2.5: "c", False: "d", datetime.date(2024, 1, 1): "e",
    }  # fmt: skip


def test_a_name_is_given_once_unless_one_of_two_is_overridden():
    error = refused("a: !list:@n [1]\nb: !dict:@n {}\n")
    assert "@n is given twice, first at t.yaml:1:4" in error.message
    assert error.line == 2
    assert graph("a: !list:@n [1]\na: !list:@n [2]\n").target("a").items == (2,)
    assert graph("a: &x !list:@n [1]\nb: *x\nc: [*x]").targets == ("a", "b", "c")


@pytest.mark.parametrize(
    "value", ["true", "5", "a: b", "- x", "!singleton:os:system", "*a", "&a", "# x", "'", "{", "\n\n", ""]
)
def test_a_value_from_outside_is_text_and_nothing_else(value):
    found = with_value(
        f"whole: {TOKEN}\npart: a {TOKEN} b\nquoted: '{TOKEN}'\n{TOKEN}: key\nlist: [{TOKEN}]\nblock: |\n  {TOKEN}\n",
        value,
    )
    entries = dict(plain(found.root))
    assert entries.pop(value) == "key"
    assert entries == {
        "whole": value, "part": f"a {value} b", "quoted": value, "list": [value], "block": f"{value}\n",
    }  # fmt: skip


def test_a_value_from_outside_is_one_argument():
    found = with_value(f"a: !singleton:f {TOKEN}\nb: !var {TOKEN}\n", "5")
    assert found.target("a").args == ("5",)
    assert found.target("b").variable == "5"


@pytest.mark.parametrize("text", [f"x: !singleton:{TOKEN} []", f"x: &{TOKEN} 1", f"x: *{TOKEN}", f"x: !{TOKEN} 1"])
def test_a_value_from_outside_elsewhere_is_an_error_that_names_toyaml(text):
    with pytest.raises(TemplateError) as caught:
        with_value(text, "dict")
    assert "toyaml" in caught.value.hint
    assert "value from outside" in caught.value.message


def test_limits_are_errors_with_a_place():
    assert "deeper than 100 levels" in refused("[" * 101).message
    assert "more than 10 nodes" in refused("[" + "1," * 20 + "]", nodes=10).message
    assert "at most" in refused("a: " + "x" * 30, string_bytes=20).message
    assert refused("a: 1\nb: [[[1]]]", depth=2).path == "$.b[0]"
    assert "characters at most" in refused("a: " + "9" * 5000).message


def bomb(levels, width, leaf="[1, 2]"):
    lines = [f"l0: &l0 {leaf}"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


def test_aliases_of_aliases_are_counted_as_if_written_out():
    assert len(graph(bomb(18, 2)).targets) == 18
    for text in (
        bomb(22, 2),
        bomb(9, 10),
        "a: &a [" + "x," * 5000 + "]\nb: [" + "*a," * 5000 + "]",
        bomb(22, 2).replace("[", "{k: [", 1).replace("]", "]}", 1),
        "a: &a !dict {"
        + ",".join(f"k{i}: 1" for i in range(5000))
        + "}\n"
        + "\n".join(f"m{i}: {{<<: *a}}" for i in range(5000)),
    ):
        start = time.perf_counter()
        assert re.search("more than (1,000,000 nodes|200,000 entries)", refused(text).message)
        assert time.perf_counter() - start < 5


def test_merge_keys_do_what_pyyaml_does_order_included():
    ours, theirs = plain(root(MERGES)), yaml.safe_load(MERGES.replace("[<<]", "['<<']"))
    assert ours == theirs
    assert [list(value) for value in ours.values()] == [list(value) for value in theirs.values()]


def test_merge_keys_take_the_content_of_tagged_mappings():
    found = root("""
info: &info !dict:@info {date: today, name: n}
list: &list !dlist {a: 1, gone: ~, b: 2}
call: &call !singleton:f {lr: 1, arg0: 2}
json: !singleton:g
    <<: *info
    name: other
child: !dlist {<<: *list, gone: 3}
again: !factory:h {<<: *call, lr: 5}
""")
    assert dict(found.entries["json"].kwargs) == {"date": "today", "name": "other"}
    assert dict(found.entries["child"].entries) == {"a": 1, "gone": 3, "b": 2}
    assert (found.entries["again"].args, dict(found.entries["again"].kwargs)) == ((2,), {"lr": 5})
    assert found.entries["again"].kind == "factory"


def test_an_alias_of_the_merge_key_is_its_text():
    assert plain(root("a: &a {b: 1}\nc: {&m <<: *a}\nd: *m\ne: {*m : 2}\n")) == {
        "a": {"b": 1}, "c": {"b": 1}, "d": "<<", "e": {"<<": 2},
    }  # fmt: skip


@pytest.mark.parametrize("value", ["1", "[1]", "[[{a: 1}]]", "!singleton:f [1]", "~", "text"])
def test_a_merge_key_takes_nothing_but_mappings(value):
    assert "a merge key (<<) takes a mapping" in refused(f"x: {{<<: {value}}}").message
