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
    return marks.read("".join(marks.token(text) if outside else text for text, outside in pieces))


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
    assert str(again) == str(string)


@given(PIECES)
def test_what_is_printed_has_none_of_the_characters_from_outside(pieces):
    marks = TaintTokens()
    printed = str(marked(marks, [("X" + text, True) if outside else (text, False) for text, outside in pieces]))
    assert "X" not in printed
    assert len(marks.used(printed)) == len({text for text, outside in pieces if outside})


@given(PIECES, st.integers(-12, 12), st.integers(-12, 12))
def test_a_slice_is_that_of_the_string_that_is_meant_and_keeps_a_mark(pieces, start, stop):
    string = marked(TaintTokens(), pieces)
    assert text_of(string[start:stop]) == text_of(string)[start:stop]
    assert is_tainted(string[start:stop]) == is_tainted(string)
    assert all(is_tainted(char) for char in string) or not is_tainted(string)


@given(PIECES, PIECES)
def test_joined_strings_keep_their_marks(left, right):
    marks = TaintTokens()
    one, two = marked(marks, left), marked(marks, right)
    assert str(one + two) == str(one) + str(two)
    assert text_of(one + two) == text_of(one) + text_of(two)
    assert text_of("x" + one + "y") == "x" + text_of(one) + "y"
    assert text_of(marks.read(str(one).join(["a", str(two)]))) == text_of(one).join(["a", text_of(two)])


def test_what_trims_or_changes_each_part_leaves_values_and_text_apart():
    marks = TaintTokens()
    string = marked(marks, [(" a: ", False), ("b c", True), (" \n", False), (" d ", True)])
    for changed, values, text in (
        (string.strip(), ["b c", " d"], "a: b c \n d"),
        (string.upper(), ["B C", " D "], " A: B C \n D "),
        (string.replace(" ", "_"), ["b_c", "_d_"], "_a:_b_c_\n_d_"),
    ):
        assert list(marks.used(str(changed)).values()) == values
        assert text_of(changed) == text
    assert list(marks.used(str(string.replace(": b", "?"))).values()) == [" a? c \n d "]


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
    if isinstance(string, TaintedStr) and all(text and "\n" not in text for text, outside in pieces if outside):
        assert text_of(string.indented("  ", first, blank)) == do_indent(text_of(string), 2, first, blank)
    whole = TaintTokens().mark("".join(text for text, _ in pieces))
    assert text_of(whole.indented("  ", first, blank)) == do_indent(text_of(whole), 2, first, blank)


def test_a_repr_is_quotes_of_the_template_around_a_value_of_outside():
    marks = TaintTokens()
    printed = repr(marked(marks, [("it's ", False), ("in: 'side", True)]))
    assert (printed[0], printed[-1]) == ("'", "'")
    assert list(marks.used(printed).values()) == ["it's in: 'side"]


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
