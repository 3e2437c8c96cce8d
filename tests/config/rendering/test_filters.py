"""The filters of templates."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.config.rendering.folders import TEXT, error, parsed, text


def test_blocks_filters_and_calls_capture_text():
    assert text("-- filter upper\na: b\n-- endfilter\n") == "A: B\n"
    assert text("{% set x %}a{{ 1 }}{% endset %}{{ x|length }}{{ x }}") == "2a1"
    assert text("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{% endcall %}") == "<in>"


@given(TEXT)
def test_filters_keep_the_mark(value):
    template = (
        "a: {{ x|upper }}\nb: {{ x|replace('a', 'b') }}\nc: {{ x ~ '/y' }}\nd: {{ '%s|%s'|format(x, 1) }}\n"
        "e: {{ [x, x]|join('-') }}"
    )
    assert parsed(template, x=value) == {
        "a": value.upper(), "b": value.replace("a", "b"), "c": f"{value}/y", "d": f"{value}|1", "e": f"{value}-{value}",
    }  # fmt: skip


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


FIELDS = st.sampled_from(["{}", "{0}", "{0!r}", "{x}", "{0:>9}", "{0:<3}|", "{x:^12}", "{{}}", "a", " ", "%", "{0[0]}"])
PERCENTS = st.sampled_from(["%s", "%r", "%9s", "%-4s|", "%.2s", "%%", "a", " ", "{}"])


@given(st.lists(FIELDS, max_size=6).map("".join), TEXT.filter(bool))
def test_format_gives_what_python_gives(template, value):
    try:
        expected = template.format(value, x=value)
    except (ValueError, IndexError):  # "{}" beside "{0}", or twice
        return
    assert parsed("a: [{{ t.format(v, x=v) }}]", t=template, v=value) == {"a": [expected]}
    if "!r" not in template:  # of a value from outside that is quotes around it
        assert parsed(f"a: [{{{{ {template!r}.format(v, x=v)|toyaml }}}}]", v=value) == {"a": [expected]}


@given(st.lists(PERCENTS, max_size=6), TEXT)
def test_percent_gives_what_python_gives(pieces, value):
    arguments = [value] * sum(piece.startswith("%") and piece != "%%" for piece in pieces)
    expected = "".join(pieces) % tuple(arguments)
    found = parsed("a: [{{ t|format(*v) }}]", t="".join(pieces), v=arguments)
    assert found == {"a": [expected]}


def test_fields_reach_no_further_than_templates_do():
    assert text("{{ '{0.year} {1[a]}'.format(now(), {'a': 2}) }}").endswith(" 2")
    assert "unsafe" in error("{{ '{0.__class__}'.format('') }}").message


def test_keyword_arguments_of_methods_are_those_of_python():
    assert text("{{ 'a,b,c'.split(sep=',', maxsplit=1)|join(';') }}") == "a;b,c"
    assert re.search("keyword argument .*'by'|'by' is an invalid keyword", error("{{ 'a'.split(by=',') }}").message)
