"""Strings with marks behave as the string that is meant, and never lose a mark: compared with plain strings."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.filters import do_indent

from forgather_mem.config.rendering.taint import Mangled, TaintedStr, TaintTokens, is_tainted, text_of, untaint
from forgather_mem.errors import TemplateError
from tests.config.rendering.folders import RENDERER

PIECES = st.lists(st.tuples(st.text("aB \n,\u00df", max_size=4), st.booleans()), min_size=1, max_size=5)
TEXTS = st.text("aB \n,\u00df", max_size=3)


def marked(marks, pieces):
    return marks.build([(text, outside, "") for text, outside in pieces])


def outside_chars(text):
    """Which characters are from outside, one boolean a character."""
    if not isinstance(text, TaintedStr):
        return [False] * len(text)
    return [outside for chars, outside, _ in text.pieces for _ in chars]


@given(PIECES)
def test_it_is_equal_to_the_string_that_is_meant_in_every_way_a_template_can_ask(pieces):
    string = marked(TaintTokens(), pieces)
    plain = "".join(text for text, _ in pieces)
    assert string == plain
    assert plain == string
    assert hash(string) == hash(plain)
    assert {plain: 1}[string] == {string: 1}[plain] == 1
    assert len(string) == len(plain)
    assert bool(string) == bool(plain)
    assert list(string) == list(plain)
    assert (string < "b", string >= "b") == (plain < "b", plain >= "b")
    for name in ("isalpha", "isspace", "islower", "isupper", "isascii"):
        assert getattr(string, name)() == getattr(plain, name)()


@given(PIECES)
def test_printed_and_read_again_it_is_the_same(pieces):
    marks = TaintTokens()
    string = marked(marks, pieces)
    again = marks.read(str(string))
    assert again == string
    assert outside_chars(again) == outside_chars(string)


@given(PIECES)
def test_what_is_printed_has_none_of_the_characters_from_outside(pieces):
    marks = TaintTokens()
    printed = str(marked(marks, [("X" + text, True) if outside else (text, False) for text, outside in pieces]))
    assert "X" not in printed
    assert len(marks.used(printed)) == len({text for text, outside in pieces if outside})


@given(PIECES, st.integers(-12, 12), st.integers(-12, 12))
def test_a_slice_keeps_the_mark_of_each_character(pieces, start, stop):
    string = marked(TaintTokens(), pieces)
    assert text_of(string[start:stop]) == text_of(string)[start:stop]
    assert outside_chars(string[start:stop]) == outside_chars(string)[start:stop]


@given(PIECES, PIECES)
def test_joined_strings_keep_their_marks(left, right):
    marks = TaintTokens()
    one, two = marked(marks, left), marked(marks, right)
    assert outside_chars(one + two) == outside_chars(one) + outside_chars(two)
    assert text_of(one + two) == text_of(one) + text_of(two)
    assert text_of("x" + one + "y") == "x" + text_of(one) + "y"
    assert text_of(marks.read(str(one).join(["a", str(two)]))) == text_of(one).join(["a", text_of(two)])


@given(PIECES, st.sampled_from(["a", ",", " ", "aB", "\n"]), TEXTS, st.integers(-1, 2))
def test_changes_give_what_plain_strings_give(pieces, sep, new, count):
    string = marked(TaintTokens(), pieces)
    plain = text_of(string)
    for name, args in [
        ("strip", ()), ("lstrip", ()), ("rstrip", (sep,)), ("strip", (sep,)), ("upper", ()), ("lower", ()), ("title",
        ()),
        ("capitalize", ()), ("swapcase", ()), ("replace", (sep, new)), ("replace", (sep, new, count)),
        ("split", ()), ("split", (sep,)), ("split", (sep, count)), ("rsplit", (sep, count)), ("rsplit", (None, count)),
        ("split", (None, count)), ("splitlines", ()), ("splitlines", (True,)), ("partition", (sep,)),
        ("rpartition", (sep,)), ("center", (9,)), ("zfill", (9,)), ("expandtabs", ()), ("find", (sep,)), ("count",
        (sep,)),
        ("startswith", (sep,)), ("endswith", ((sep, "x"),)), ("removeprefix", (sep,)), ("removesuffix", (sep,)),
    ]:  # fmt: skip
        assert untaint(getattr(string, name)(*args)) == getattr(plain, name)(*args), name
    assert untaint(string * 2) == plain * 2
    assert (sep in string) == (sep in plain)


@given(PIECES, st.booleans(), st.booleans())
def test_indenting_gives_what_jinja_gives(pieces, first, blank):
    string = marked(TaintTokens(), pieces)
    if isinstance(string, TaintedStr):
        assert text_of(string.indented("  ", first, blank)) == do_indent(text_of(string), 2, first, blank)


def test_a_repr_is_quotes_of_the_template_around_a_value_of_outside():
    marks = TaintTokens()
    printed = repr(marked(marks, [("it's ", False), ("in: 'side", True)]))
    assert printed.startswith("'it\\'s ")
    assert printed.endswith("'")
    assert list(marks.used(printed).values()) == ["in: 'side"]


def test_an_empty_value_from_outside_is_still_a_value():
    marks = TaintTokens()
    assert marks.used(str(marks.mark(""))) != {}
    assert is_tainted([{"a": marks.mark("")}])
    assert marks.mark("") + "a" == "a"
    assert marks.used(str("a" + marks.mark("")))


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
def test_no_value_can_end_a_tag_or_begin_another_part_of_it(value):
    rendered = RENDERER.render_string("a: !call:{{ x }}:f []\nb: 1", {"x": value})
    assert re.fullmatch(r"a: !call:([A-Za-z0-9_./~+-]+|\uf4c1\w+\uf4c2):f \[\]\nb: 1", rendered.text)


def test_a_token_that_a_template_makes_up_is_noticed():
    with pytest.raises(TemplateError, match="changed in a way that can't be tracked") as error:
        RENDERER.render_string("a: {{ '\\uf4c1' }}1", {"x": "value"})
    assert "toyaml" in error.value.hint


def test_tokens_of_the_last_render_are_forgotten_and_none_is_given_again():
    marks = TaintTokens()
    before = str(marks.mark("a"))
    assert marks.used(before) == {before: "a"}
    marks.reset()
    with pytest.raises(Mangled):
        marks.used(before)
    assert str(marks.mark("a")) != before
