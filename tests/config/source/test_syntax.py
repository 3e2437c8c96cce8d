"""Text of a template to Jinja source: sub-templates, comments, line statements, blocks. The translations
are those of the reference that the language comes from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.config.source.syntax import split, to_jinja


@pytest.mark.parametrize(
    ("line", "jinja"),
    [
        ("-- set x = 1", "{% set x = 1 %}"), ("<< endif", "{%- endif %}"), (">> if x", "{% if x -%}"),
        ("== super()", "{{ super() }}"), ("    => super()", "{{ super()|trim('\\n')}}"), ("--\tset x", "{% set x %}"),
        ("<<: *defaults", "<<: *defaults"), ("  <<: [*a, *b]", "  <<: [*a, *b]"), ("---", "---"), ("--x", "--x"),
        ("a: -- b", "a: -- b"), (">> ", "{%  -%}"), ("==", "=="),
    ],
)  # fmt: skip
def test_a_line_statement_becomes_a_jinja_tag(line, jinja):
    assert to_jinja(line) == jinja


def test_a_block_ends_before_the_next_one_that_is_not_deeper():
    assert to_jinja("[a]\none\n    [b]\n    two\n[c]\nthree").split("\n") == [
        "{% block a %}",
        "one",
        "{% block b %}",
        "    two{{'\\n'}}{% endblock b +%}{{'\\n'}}{% endblock a +%}",
        "{% block c %}",
        "three{{'\\n'}}{% endblock c +%}",
    ]


def test_a_trimmed_block_is_trimmed_outside_in_a_parent_and_inside_in_a_child():
    assert to_jinja("[a!]\nx") == "{% filter trim %}{% block a %}\nx{{'\\n'}}{% endblock a +%}{% endfilter %}"
    child = to_jinja("-- extends 'p'\n[a!]\nx")
    assert child.split("\n", 1)[1] == "{% block a %}{% filter trim %}\nx{{'\\n'}}{% endfilter %}{% endblock a +%}"
    assert to_jinja("-- extends 'p'\n[a]\n  [b!]\nx").count("{% filter trim %}{% block b %}") == 1


@pytest.mark.parametrize(
    "text",
    [
        "a: !list\n    [abc]", "a: !list:@name\n    [abc]\nb: 1", "- !tuple\n  [abc]\n\n- 2",
        "a: !list\n    ## why\n\n    [abc]\n## why\nb: 1", "a: [\n    [abc]\n]", "a: [\n    b,\n    [abc]\n]",
        "[1000]", "  [0]", "[a, b]", "[a-b]", "{{ f(\n[abc]\n) }}",
    ],
)  # fmt: skip
def test_a_yaml_list_is_no_block(text):
    assert "{% block" not in to_jinja(text)


@pytest.mark.parametrize(
    "text",
    [
        "a: !list\n    [items]\n    - 1",
        "a: !list\n[abc]",
        "a: !dlist\n    [abc]\nb: 1",
        "a: !singleton:f\n    [arguments]\nb: 1",
        ".define: &profiling !call:f\n\n    [compile]\nb: 1",
        "Dear all,\n[abc]",
    ],
)
def test_a_placeholder_is_a_block(text):
    assert "{% block" in to_jinja(text)


@given(st.lists(st.sampled_from(["a: 1", "", "#--- x ---", "# - x -", "## c", "#---y---", "\r", " #--- x ---"])))
def test_every_line_of_a_part_is_the_line_of_the_file_that_it_says(lines):
    text = "\n".join(lines)
    original = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for part in split(text):
        written = part.text.split("\n") if part.text else []
        assert original[part.first_line - 1 :][: len(written)] == written


@given(st.text(alphabet=" \n#-[]{}%'\"|>:ab!=<,\t\\"))
def test_line_numbers_survive_any_text(text):
    assert to_jinja(text).count("\n") == text.count("\n")


@given(st.lists(st.sampled_from(["a{}: 1", "  b{}: 'x' ## c", "-- set v{} = 1", "[b{}]", "== w{}", "- 'x{}'"])))
def test_what_is_written_on_a_line_stays_on_it(shapes):
    lines = [shape.format(f"_{number}_") for number, shape in enumerate(shapes)]
    for number, line in enumerate(to_jinja("\n".join(lines)).split("\n") if lines else []):
        assert f"_{number}_" in line


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
