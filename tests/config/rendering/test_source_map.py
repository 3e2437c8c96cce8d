"""The source map: every rendered position goes back to the line of the template that printed it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.source.rendered import SourceLocation
from forgather_mem.config.source.search import Searcher

BASE = """\
# base
[head]
h1: base 3
    [inner]
    i1: base 5

[tail!]

  t1: base 9
  t2: {{ outside }} base 10
"""
CHILD = """\
-- extends 'base.yaml'
## a comment
[inner]
    == super()
    c1: child 5
-- for n in [1, 2]
    c{{ n }}: child 7
        -- include 'part'
-- endfor
    -- set block
    s1: child 11
    -- endset
== block|indent(2)
    m1: {{ pair('child 14') }} child 14

[tail]
== super()|upper|replace('BASE', 'base')
{{ outside|toyaml }}: child 18

#--- part ---
    p1: part 21
-- macro pair(x)
z: {{ x }}
-- endmacro
"""


@pytest.fixture
def rendered(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "child.yaml").write_text(CHILD.replace("{{ pair('child 14') }} ", ""))
    return Renderer(Searcher(tmp_path)).render("child.yaml", {"outside": "a: b"})


def test_every_line_names_its_file_and_line(rendered):
    files = {"base": "base.yaml", "child": "child.yaml", "part": "child.yaml"}
    seen = set()
    for number, line in enumerate(rendered.text.split("\n"), 1):
        for match in re.finditer(r"(base|child|part) (\d+)", line):
            for column in (1, match.start() + 1, match.end()):
                place = rendered.place(number, column)
                assert (place.template, place.line) == (files[match[1]], int(match[2])), line
            assert match[0].lower() in rendered.place(number, match.start() + 1).source_line
            seen.add(match[0])
    assert seen == {
        "base 3", "base 5", "base 9", "base 10", "child 5", "child 7", "part 21", "child 11", "child 14", "child 18",
    }  # fmt: skip


def test_columns_are_those_of_the_original_line(rendered):
    for number, line in enumerate(rendered.text.split("\n"), 1):
        for word in ("h1:", "i1:", "c1:", "p1:", "s1:", "m1:"):
            if word in line and "child 7" not in line:
                place = rendered.place(number, line.index(word) + 1)
                assert place.source_line[place.column - 1 :].startswith(word)


def test_the_chain_says_block_and_way(rendered):
    chains = {}
    for number, line in enumerate(rendered.text.split("\n"), 1):
        for match in re.finditer(r"(?:base|child|part) \d+", line):
            chains[match[0]] = rendered.place(number, match.start() + 1).chain
    assert chains["base 3"] == "in block head, extended by child.yaml:1"
    assert chains["base 5"] == "in block inner, extended by child.yaml:1"
    assert chains["child 5"] == "in block inner"
    assert chains["part 21"] == "included by child.yaml:8"


def test_positions_beyond_the_text_are_those_at_its_end(rendered):
    last = rendered.place(10**6, 10**6)
    assert last.template == "child.yaml"
    assert rendered.place(0, 0) == rendered.place(1, 1)


def test_a_text_that_prints_nothing_has_a_place_too():
    rendered = Renderer(Searcher(())).render_string("-- set x = 1\n")
    assert (rendered.text, rendered.place(1).template, rendered.place(1).line) == ("", "<string>", 1)


def test_the_map_is_of_the_templates_that_were_rendered_not_of_what_their_files_hold_now(tmp_path):
    (tmp_path / "main.yaml").write_text("a: 1\nb: {{ now().microsecond }}\n")
    rendered = Renderer(Searcher(tmp_path)).render("main.yaml")
    (tmp_path / "main.yaml").write_text("# changed\n\n\n")
    assert str(rendered.place(2, 1)) == "main.yaml:2:1"
    assert rendered.place(2).source_line.startswith("b: {{")


LINES = st.lists(
    st.sampled_from(
        [
            "k{id}: 1", "  k{id}: {{{{ {id} }}}}", "-- if true\nk{id}: 2\n-- endif",
            "-- for i in [1, 2]\nk{id}: 3\n-- endfor",
            "[b{id}]\nk{id}: 4", "[b{id}!]\n\n  k{id}: 5\n", "## c\n\n", "k{id}: '{{{{ x }}}}'",
            "{{# {id}\n #}}k{id}: 6",
            "-- filter indent(2)\nk{id}: 7\nk{id}: 8\n-- endfilter", "-- set v\nk{id}: 9\n-- endset\n== v|trim",
            "{{% macro m{id}() %}}\nk{id}: 10\n{{% endmacro %}}{{{{ m{id}() }}}}", "k{id}: {{{{ x|toyaml }}}} # k{id}",
        ]
    ),
    max_size=12,
)  # fmt: skip


@given(LINES)
def test_every_line_of_any_template_goes_back_to_the_line_that_has_its_key(shapes):
    template = "\n".join(shape.format(id=number) for number, shape in enumerate(shapes))
    rendered = Renderer(Searcher(())).render_string(template, {"x": "it's: \n"})
    written = template.split("\n")
    for number, line in enumerate(rendered.text.split("\n"), 1):
        key = re.search(r"k\d+:", line)
        if key:
            place = rendered.place(number, key.start() + 1)
            assert key[0] in written[place.line - 1]
            assert place.source_line == written[place.line - 1]


def test_a_text_that_nothing_is_rendered_in_is_its_own_source_map():
    rendered = Renderer(Searcher(())).render_string("a: 1\rb: 2\r\nc: 3\n")
    for number, line in enumerate(("a: 1", "b: 2", "c: 3"), 1):
        assert rendered.place(number, 3) == SourceLocation("<string>", number, 3, line)
