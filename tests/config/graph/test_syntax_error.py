"""What is not valid YAML: the line of the mistake, and what to do. More: tests/config/mistakes.yaml."""

import pytest

from tests.config.graph.graphs import refused


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("a: [1\nb: 2", 1, 4, "not valid YAML"), ("a: 1\nb: c: d", 2, 5, "not valid YAML"),
        ("a: \x07", 1, 4, "U+0007"), ("a: 1\nb: \ud800", 2, 4, "U+D800"),
        ("ab: @x", 1, 5, "not valid YAML"), ("a: %x", 1, 4, "not valid YAML"),
        ("a: 2024-13-01", 1, 4, "looks like a date"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_is_an_error_with_line_and_column(text, line, column, said):
    error = refused(text)
    assert said in error.message
    assert (error.line, error.column) == (line, column)
    assert isinstance(error.__cause__, Exception) or "date" in said


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a: 1\ncallbacks !dlist\n    gc: !call:x\n        e: 2\nb: 2\n", 2, "callbacks"),
        ("callbacks\n    gc: 3\n", 1, "callbacks"),
        ("callbacks !list\n    - !call:x\n        e: 1\n", 1, "callbacks"),
        ("# one\nlr 3\n# two\nb: 2\n", 2, "lr"), ("a: 1\n\nlr 3\nb: 2\n", 3, "lr"),
        ("a:\n    b: !call:x\n        every_steps 2\n        log: 1\n", 3, "every_steps"),
        ("a:\n  b: 1\n  lr 3  # why\nc: 4\n", 3, "lr"), ("a:\n  b: 1\n  lr 3\n", 3, "lr"),
        ("a: &x\n    lr 3\n    b: 2\n", 2, "lr"), ("x:\n  - a: 1\n  lr [1, 2]\ny: 1\n", 3, "lr"),
    ],
)  # fmt: skip
def test_a_line_that_lacks_a_colon_is_the_one_that_is_shown(text, line, word):
    error = refused(text)
    assert error.line == line
    assert error.source_line.lstrip().startswith(word)
    assert error.hint == f"is a ':' missing after {word!r}?"


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: b: c\n", 1), ("a:\n  b: some text\n    more\n    c: 3\n", 4), ("x:\n  - a\n  - b\n    c: 3\n", 4),
     ("a: 'lr'\n  b: 1", 2), ("a: [x\nb: 1\nc: 2", 1), ("a: \"x y\nb: 1\n", 1)],
)  # fmt: skip
def test_no_colon_is_asked_for_where_something_else_is_wrong(text, line):
    error = refused(text)
    assert error.line == line
    assert "missing" not in (error.hint or "")
