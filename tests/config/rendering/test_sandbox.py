"""What a template may do."""

import pytest

from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.rendering.sandbox import ATTRIBUTES, Sandbox
from forgather_mem.config.rendering.taint import TaintTokens
from forgather_mem.config.source.search import Searcher
from tests.config.rendering.folders import parsed, text


def test_nothing_of_a_template_is_computed_while_it_is_compiled():
    assert text("{% if false %}{{ 9**9**9**9 }}{{ 'a' * 10**12 }}{{ 'a'|center(10**12) }}{% endif %}ok") == "ok"


@pytest.mark.parametrize(
    "value", ["a", 1, True, 0.5, [1], (1,), {"a": 1}, range(3), b"a", {1}, frozenset(), object(), len, 1j, slice(1)]
)
def test_an_attribute_that_is_not_listed_is_closed(value):
    sandbox = Sandbox(TaintTokens(), paste_values=False)
    for name in dir(value):
        is_open = any(name in ATTRIBUTES.get(cls, ()) for cls in type(value).__mro__)
        assert sandbox.is_safe_attribute(value, name, getattr(value, name)) == is_open, name


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


def test_values_are_pasted_when_that_is_asked_for():
    renderer = Renderer(Searcher(()), paste_values=True)
    made = renderer.render_string("a: {{ x }}\nb: {{ f() }}\nc: {{ n }}", {"x": "!tag [1]", "f": lambda: 5, "n": None})
    assert made.text == "a: !tag [1]\nb: 5\nc: None"
    assert made.values == {}
