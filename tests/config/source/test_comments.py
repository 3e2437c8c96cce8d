"""Where a comment begins in a line, and where none does."""

import pytest

from forgather_mem.config.source.syntax import to_jinja


@pytest.mark.parametrize(
    ("line", "jinja"),
    [
        ("## all of it", "{##}"),
        ("   ### all of it", "{##}"),
        ("##", "{##}"),
        ("a: 1 ## c", "a: 1"),
        ("a: 1\t#### c", "a: 1"),
        ("a: 1 # yaml's own", "a: 1 # yaml's own"),
        ("a: 1 # yaml's ## and ours", "a: 1 # yaml's"),
        ('a: "x ## y"', 'a: "x ## y"'),
        ("a: 'x ## y' ## z", "a: 'x ## y'"),
        ("a: 'it''s ## y' ## z", "a: 'it''s ## y'"),
        ('a: "\\" ## y" ## z', 'a: "\\" ## y"'),
        ("[a, 'x ## y'] ## z", "[a, 'x ## y']"),
        ("a: don't ## and won't", "a: don't"),
        ("a: 5' ## and 6'", "a: 5'"),
        ("- 'tis ## so", "- 'tis"),
        ("url: http://x/##y", "url: http://x/##y"),
        ("a: {{ 'x ## y' }} ## z", "a: {{ 'x ## y' }}"),
        ("a: {{ {'b': {'c': \"## \"}} }} ## z", "a: {{ {'b': {'c': \"## \"}} }}"),
        ('a: "{{ f("x ## y") }} ## in" ## z', 'a: "{{ f("x ## y") }} ## in"'),
        ('-- set x = "y ## z" ## comment', '{% set x = "y ## z" %}'),
        ("-- set x = 'a\\' ## b' ## c", "{% set x = 'a\\' ## b' %}"),
        ("{# a ## b #} ## c", "{# a ## b #}"),
        ("{% raw %} ## kept {% endraw %} ## cut", "{% raw %} ## kept {% endraw %}"),
        ("one ## two ## three", "one"),
    ],
)
def test_a_comment_ends_a_line_but_not_inside_quotes_or_jinja(line, jinja):
    assert to_jinja(line) == jinja


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a: |\n  ## Heading\n  x ## y\nb: 1 ## cut", ["## Heading", "x ## y"]),
        ("a: >-\n  ## Heading\n\n  more ## text\n", ["## Heading", "more ## text"]),
        ("- |\n  ## Heading\n- b ## cut", ["## Heading"]),
        ("- a: !!str &x |2\n    ## Heading\n  b: c ## cut", ["## Heading"]),
        ("a: | # why\n  x ## kept\nb: x | # why\n  y ## cut", ["x ## kept"]),
        ("a: |\n  -- if x\n  ## Heading\n-- endif\n  y ## kept\nb: 1 ## cut", ["## Heading", "y ## kept"]),
        ('a: "one\n  two ## kept"\nb: 1 ## cut', ["two ## kept"]),
        ("a: 'never closed\nb: 1 ## cut'", []),
        ("-- set x = {{ y }} | \n ## cut", []),
        ("a: |\n  {{ f(\n  ' ## kept') }} ## kept too\nb: ' ## no' ## cut", ["' ## kept') }} ## kept too", "' ## no'"]),
        ("{% set x = {\n  'a': ' ## kept', ## cut\n} %}", ["' ## kept'"]),
        ("{#\n## kept\n#}\na ## cut", ["## kept"]),
        ("{% raw %}\n## kept\n-- kept\n[kept]\n{% endraw %}\na ## cut", ["## kept", "-- kept", "[kept]"]),
    ],
)
def test_text_that_is_no_comment_stays_over_several_lines(text, kept):
    jinja = to_jinja(text)
    assert "cut" not in jinja
    for piece in kept:
        assert piece in jinja
