"""The short cut for templates without anything to render, against the renderer."""

import os
import time

import jinja2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.limits import Limits
from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.config.source.search import Searcher
from forgather_mem.config.source.syntax import is_plain, to_jinja
from forgather_mem.errors import TemplateError
from tests.programs import printed_by

RENDERER = Renderer(Searcher())
PIECES = (
    "a", ": ", "\n", "\n\n", "  ", "\t", "-", "--", "- ", "<<", ">>", "==", "=>", "<<: *a", "#", "##", "# c", "[", "]",
    "abc", "!", "{", "}", "%", "{{", "{%", "{#", "#}", "'", '"', "|", "\\", "#--- x.yaml ---", "-- set x = 1",
    "\r", "\f", "\x85", "\u2028", "\ufeff",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text(max_size=30))
@example("[abc]")
@example("x: 1\n-- if a")
@example("a\n  [abc!]  \nb")
@example("x: |\n  -- text")
@example("a\n\n\n")
def test_what_the_short_cut_takes_the_renderer_leaves_as_it_is(text):
    if not is_plain(text):
        return
    plain = Rendered.as_is(text.removesuffix("\n"))
    rendered = RENDERER.render_string(text)
    assert plain.text == rendered.text == jinja2.Environment().from_string(text).render()
    assert to_jinja(text) == text
    for line, written in enumerate(plain.text.split("\n"), 1):
        assert not written.strip() or plain.place(line, 1) == rendered.place(line, 1)


@pytest.mark.parametrize(
    "text", ["a: [b]\n", "<<: *a\n", "--- \n"[:3], "# comment\n- [abc] \n", "a: 'x == y'\n", "k: {b: 1}\n"]
)
def test_plain_yaml_is_not(text):
    assert is_plain(f"x: 1\n{text}")


def test_a_plain_template_loads_without_jinja(tmp_path):
    (tmp_path / "t.yaml").write_text("x: !singleton:datetime:timedelta [1]\n")
    script = (
        "import sys\nfrom forgather_mem.config.environment import ConfigEnvironment\n"
        f"made = ConfigEnvironment({str(tmp_path)!r}).load('t.yaml').construct('x')\n"
        "print(made, {'jinja2', 'torch', 'tomllib'} & set(sys.modules))"
    )
    assert printed_by(script, folder=tmp_path) == "1 day, 0:00:00 set()\n"


def test_a_template_that_changes_is_read_again(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    (second / "t.yaml").write_text("a: 1\n")
    env = ConfigEnvironment([first, second])
    assert env.load("t.yaml").construct() == {"a": 1}
    (second / "t.yaml").write_text("a: 22\n")
    assert env.load("t.yaml").construct() == {"a": 22}
    (second / "t.yaml").write_text("a: {{ 3 }}\n")
    assert env.load("t.yaml").construct() == {"a": 3}
    (first / "t.yaml").write_text("a: 4\n")
    assert env.load("t.yaml").construct() == {"a": 4}
    os.utime(first / "t.yaml", (time.time(), time.time()))
    assert env.load("t.yaml").construct() == {"a": 4}


def test_the_limits_hold_for_plain_templates_too(tmp_path):
    (tmp_path / "t.yaml").write_text("a: 1\n" * 100)
    for budgets in (Limits(source_bytes=50), Limits(rendered_bytes=50)):
        env = ConfigEnvironment(tmp_path, budgets=budgets)
        with pytest.raises(TemplateError, match="more than 50"):
            env.load("t.yaml")
        with pytest.raises(TemplateError, match="more than 50"):
            env.load_from_string("a: 1\n" * 100)


def test_variables_are_looked_at_also_when_a_template_has_none(tmp_path):
    (tmp_path / "t.yaml").write_text("a: 1\n")
    with pytest.raises(TemplateError):
        ConfigEnvironment(tmp_path).load("t.yaml", model=object())
