"""Merge keys: what a mapping takes over from others."""

import pytest
import yaml

from tests.config.graph.graphs import MERGES, plain, refused, root


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
