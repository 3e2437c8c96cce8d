"""The filters of templates."""

from hypothesis import given
from hypothesis import strategies as st

from tests.config.rendering.folders import TEXT, parsed, text


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
