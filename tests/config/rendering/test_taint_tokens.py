"""Tokens for values from outside, and what is left of them."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgather_mem.config.rendering.taint_tokens import Mangled, TaintTokens
from forgather_mem.errors import TemplateError
from tests.config.rendering.folders import RENDERER


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a: !call:{{ x }}/m.py:f", "a: !call:/my dir/m.py:f"),
        ("a: !call:{{ x|replace(' ', '_') }}/m.py:f@n []", "a: !call:/my_dir/m.py:f@n []"),
        ("[!call:{{ 'a.b'|replace('b', y) }}:f [], b]", "[!call:a.mod:f [], b]"),
    ],
)
def test_a_value_may_be_a_part_of_a_name_in_a_tag_when_it_is_no_more_than_that(template, text):
    rendered = RENDERER.render_string(template, {"x": "/my dir", "y": "mod"})
    assert rendered.shown == text
    assert (rendered.values == {}) == (" dir" not in text)


@given(st.text("aZ0._/ :@,[]!&*\n'\"#", min_size=1))
@settings(deadline=None)
def test_no_value_can_end_a_tag_or_begin_another_part_of_it(value):
    rendered = RENDERER.render_string("a: !call:{{ x }}:f []\nb: 1", {"x": value})
    assert re.fullmatch(r"a: !call:([A-Za-z0-9_./~+-]+|\uf4c1\w+\uf4c2):f \[\]\nb: 1", rendered.text)


def test_a_token_that_a_template_makes_up_is_noticed():
    with pytest.raises(TemplateError, match="changed in a way that can't be tracked") as error:
        RENDERER.render_string("a: {{ '\\uf4c1' }}1", {"x": "value"})
    assert "toyaml" in error.value.hint


def test_what_is_left_of_a_token_is_noticed():
    marks = TaintTokens()
    token = str(marks.mark("value"))
    assert marks.used(f"a: {token}") == {token: "value"}
    for mangled in (token[:-1], token[1:], token.replace("_", ""), token.upper(), token[::-1]):
        if mangled != token:
            with pytest.raises(Mangled):
                marks.used(f"a: {mangled}")


def test_tokens_of_the_last_render_are_forgotten_but_those_of_global_variables_are_kept():
    marks = TaintTokens()
    kept = str(marks.mark("global"))
    marks.keep()
    local = str(marks.mark("local"))
    marks.reset()
    assert marks.used(kept) == {kept: "global"}
    with pytest.raises(Mangled):
        marks.used(local)
    assert str(marks.mark("other")) not in (kept, local)
