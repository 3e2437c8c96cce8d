"""Template files as Jinja source, with the sub-templates that they define."""

import pytest

from forgather_mem.config.limits import Limits
from forgather_mem.config.source.loader import Sources
from forgather_mem.config.source.search import Searcher
from forgather_mem.errors import TemplateError

TEXT = "a: 1 ## why\n#--- part ---\n-- if x\n  b: 2\n-- endif\n#--- other.yaml ---\nc: 3"


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "main.yaml").write_text(TEXT)
    return Sources(Searcher(tmp_path), Limits())


def test_a_file_has_a_head_and_named_parts_that_know_their_lines(sources, tmp_path):
    head = sources.load("main.yaml")
    assert (head.name, head.file, head.jinja()) == ("main.yaml", tmp_path / "main.yaml", "a: 1")
    assert list(head.parts) == ["part", "other.yaml"]
    part = head.parts["part"]
    assert part.jinja().split("\n") == ["{% if x %}", "  b: 2", "{% endif %}"]
    assert part.parts is head.parts
    assert (str(part.place(2)), part.place(2).source_line) == ("main.yaml:4:3", "  b: 2")
    assert str(head.parts["other.yaml"].place(1, 4)) == "main.yaml:7:4"
    assert len({source.key for source in (head, *head.parts.values())}) == 3


def test_a_file_is_read_once_until_it_changes(sources, tmp_path):
    first = sources.load("main.yaml")
    assert sources.load("main.yaml") is first
    (tmp_path / "main.yaml").write_text("changed: 1")
    assert sources.load("main.yaml").jinja() == "changed: 1"
    (tmp_path / "main.yaml").unlink()
    assert sources.load("main.yaml") is None


def test_a_string_has_no_parts(sources):
    one = sources.from_text(TEXT)
    assert (one.parts, one.file) == ({}, None)
    assert "c: 3" in one.jinja()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: \uf4c2", 2, "the character U+F4C2 is reserved"),
        ("#\n#--- a ---\n#--- b ---\n#--- a ---\n", 4, "another sub-template 'a'"),
        ("\n" * 200_001, 200_000, "at most 200,000 lines"),
    ],
    ids=["a reserved character", "a name twice", "lines"],
)
def test_what_is_no_template_is_refused_with_its_line(sources, tmp_path, text, line, message):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(TemplateError, match=message.replace("+", r"\+")) as refused:
        sources.load("bad.yaml")
    assert (refused.value.template, refused.value.line) == ("bad.yaml", line)
