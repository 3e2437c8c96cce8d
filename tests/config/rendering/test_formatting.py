"""Formatting in templates: what Python gives."""

from hypothesis import given
from hypothesis import strategies as st

from tests.config.rendering.folders import TEXT, error, parsed, text

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
    assert "'by' is an invalid keyword argument" in error("{{ 'a'.split(by=',') }}").message
