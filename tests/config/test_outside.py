"""Values from outside are data: whatever they hold, YAML reads them as that string, and templates compute with
them as with any other."""

import datetime
import enum
import pathlib
import re
from typing import NamedTuple

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forgather_mem.config.budgets import Budgets
from forgather_mem.config.render import Renderer
from forgather_mem.config.search import Searcher
from forgather_mem.errors import TemplateError

RENDERER = Renderer(Searcher(()), Budgets(), {"project": "a: &b !c"})


def parsed(template, **variables):
    """The rendered text read by a YAML parser that knows nothing of us, the values put in place afterwards."""
    rendered = RENDERER.render_string(template, variables)

    def put_back(node):
        if isinstance(node, dict):
            return {put_back(key): put_back(value) for key, value in node.items()}
        if isinstance(node, list):
            return [put_back(value) for value in node]
        return rendered.put_back(node) if isinstance(node, str) else node

    return put_back(yaml.safe_load(rendered.text))


TEXT = st.text().filter(lambda text: not set(text) & set("\uf4c1\uf4c2\uf4c3\uf4c4"))


@settings(deadline=None)
@given(TEXT)
@example("x: 1\n!singleton:os:system [ls]")
@example("{{ 7 * 7 }}")
@example("'\"")
@example("")
@example(" - a")
@example("null")
def test_any_string_is_that_string_wherever_a_scalar_can_stand(value):
    template = (
        "a: {{ x }}\nb: '{{ x }}'\nc: \"{{ x }}\"\nd: [{{ x }}, {{ x|toyaml }}]\n{{ x }}k: e{{ x }}\nf: |-\n  {{ x }}\n"
    )
    assert parsed(template, x=value) == {
        "a": value, "b": value, "c": value, "d": [value, value], f"{value}k": f"e{value}", "f": value,
    }  # fmt: skip


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(PLAIN)
def test_any_plain_value_is_that_value(value):
    assert parsed("a: {{ x }}\nb: {{ x|toyaml }}\nc: {{ x|tojson }}", x=value) == {"a": value, "b": value, "c": value}


@settings(deadline=None)
@given(TEXT)
def test_filters_keep_the_mark(value):
    template = (
        "a: {{ x|upper }}\nb: {{ x|replace('a', 'b') }}\nc: {{ x ~ '/y' }}\nd: {{ '%s|%s'|format(x, 1) }}\n"
        "e: {{ [x, x]|join('-') }}"
    )
    assert parsed(template, x=value) == {
        "a": value.upper(), "b": value.replace("a", "b"), "c": f"{value}/y", "d": f"{value}|1", "e": f"{value}-{value}",
    }  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(st.text("ab: \n{}[]!&*'\"#-", min_size=1, max_size=12))
def test_no_way_through_filters_methods_or_macros_lets_a_value_become_yaml(value):
    template = """\
{% macro m(v) %}{{ v }}{% endmacro %}{% set block %}{{ x }}{% endset %}
a: {{ x|title }}
b: {{ x|truncate(5) }}
c: {{ x|indent }}
d: {{ x[1:] }}
e: {{ x.strip() }}
f: {{ joinpath('r', x) }}
g: {{ '{}'.format(x) }}
h: {{ '%5s' % x }}
i: {{ m(x) }}
j: {{ block }}
k: {{ x|list|join }}
l: {{ x|reverse }}
m: {{ repr(x) }}
n: {{ x.split()|last|default('') }}
o: {{ [x]|map('upper')|first }}
p: {{ {'q': x}.q }}
r: {% filter trim %}{{ x }}{% endfilter +%}
s: {{ x|center(30) }}
t: {{ x * 2 }}
u: {{ x|urlencode }}
v: {{ x|e }}
"""
    found = parsed(template, x=value)
    assert list(found) == list("abcdefghijklmnoprstuv")
    assert (found["i"], found["j"], found["k"], found["t"]) == (value, value, value, value * 2)
    assert (found["l"], found["o"], found["h"]) == (value[::-1], value.upper(), f"{value:>5}")


def test_in_conditions_and_computations_it_is_the_string():
    template = """\
a: {{ x == 'run 1' and x != 'b' and 'run' in x and x in ['run 1'] and x.startswith('run') }}
b: {{ x|length }}
c: {{ 'run 1 and more'.startswith(x) and x in 'run 1 and more' }}
d: {{ n|int + 1 }}
e: {{ {'run 1': 5}[x] }}
f: {{ 'good' if x is string and x is lower else 'bad' }}
g: {{ x|upper == 'RUN 1' }}
h: {{ (x ~ '!') == 'run 1!' }}
i: {{ cfg['a b'] + cfg.items()|length }}
"""
    assert parsed(template, x="run 1", n="41", cfg={"a b": 2}) == {
        "a": True, "b": 5, "c": True, "d": 42, "e": 5, "f": "good", "g": True, "h": True, "i": 3,
    }  # fmt: skip


def test_it_can_name_a_template(tmp_path):
    (tmp_path / "part.yaml").write_text("b: 1")
    renderer = Renderer(Searcher(tmp_path))
    assert renderer.render_string("-- include name ~ '.yaml'", {"name": "part"}).shown == "b: 1"
    with pytest.raises(TemplateError, match=r"has '\.\.' in it"):
        renderer.render_string("-- include name", {"name": "../part.yaml"})


class Mode(enum.Enum):
    FAST = "fast"


class Point(NamedTuple):
    x: int
    name: str


def test_values_of_other_plain_types_are_taken():
    template = (
        "a: {{ p }}\nb: {{ mode }}\nc: {{ day }}\nd: {{ point.x }}\ne: {{ point.name }}\nf: {{ big }}\n"
        "g: {{ inf }}\nh: {{ t }}\ni: {{ inf[0] }}\n"
    )
    assert parsed(
        template, p=pathlib.Path("/a: b"), mode=Mode.FAST, day=datetime.date(2024, 1, 2), point=Point(1, "n: m"),
        big=2**70, inf=[float("inf")], t=("a", 1),
    ) == {
        "a": "/a: b", "b": "fast", "c": datetime.date(2024, 1, 2), "d": 1, "e": "n: m", "f": 2**70, "g": [float("inf")],
        "h": ["a", 1], "i": float("inf"),
    }  # fmt: skip


@pytest.mark.parametrize("value", [object(), print, b"bytes", {"a": [object()]}, 1j, type])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(TemplateError, match="variable 'thing' is of type"):
        RENDERER.render_string("a", {"thing": value})


def test_a_value_that_is_too_large_or_too_deep_is_refused():
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    cyclic: list[object] = []
    cyclic.append(cyclic)
    for value in ("x" * 2**21, deep, cyclic, [0] * 300_000, "\uf4c1"):
        with pytest.raises(TemplateError, match="variable 'big'"):
            RENDERER.render_string("a", {"big": value})


def test_global_variables_are_data_too_and_reach_imported_templates(tmp_path):
    assert parsed("a: {{ project }}") == {"a": "a: &b !c"}
    (tmp_path / "m.yaml").write_text("-- macro show()\n== project\n-- endmacro\n")
    renderer = Renderer(Searcher(tmp_path), None, {"project": "p: q"})
    for _ in range(2):
        rendered = renderer.render_string("-- from 'm.yaml' import show\na: {{ show()|trim }}")
        assert rendered.shown == "a: p: q"
        assert set(rendered.values.values()) == {"p: q"}


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
    with pytest.raises(TemplateError, match="changed in a way that can't be followed") as error:
        RENDERER.render_string("a: {{ '\\uf4c1' }}1", {"x": "value"})
    assert "toyaml" in error.value.hint


def test_values_are_pasted_when_that_is_asked_for():
    renderer = Renderer(Searcher(()), paste_values=True)
    rendered = renderer.render_string(
        "a: {{ x }}\nb: {{ f() }}\nc: {{ n }}", {"x": "!tag [1]", "f": lambda: 5, "n": None}
    )
    assert rendered.text == "a: !tag [1]\nb: 5\nc: None"
    assert rendered.values == {}


def test_what_a_template_sets_itself_is_template_text():
    assert parsed("-- set x = '[1, 2]'\na: {{ x }}\nb: {{ ['c', 1] }}") == {"a": [1, 2], "b": ["c", 1]}


def test_rendering_twice_with_other_values_gives_other_values():
    first = RENDERER.render_string("a: {{ x }}", {"x": "one"})
    second = RENDERER.render_string("a: {{ x }}", {"x": "two"})
    assert (first.shown, second.shown) == ("a: one", "a: two")
