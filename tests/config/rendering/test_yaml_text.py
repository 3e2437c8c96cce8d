"""Values of a template as YAML on one line."""

import pytest

from tests.config.rendering.folders import error, text


@pytest.mark.parametrize(
    ("value", "yaml"),
    [("'a b'", "a b"), ("'1'", "'1'"), ("none", "null"), ("true", "True"), ("1e-4", "0.0001"), ("1e22", "1.0e+22"),
     ("['a', '1', none, true]", "[a, '1', null, true]"), ("{'b': 1, 'a': [2]}", "{a: [2], b: 1}"),
     ("'a: b'", "'a: b'"), ("''", "''"), ("'yes'", "'yes'"), ("[[1, 2], {}]", "[[1, 2], {}]")],
)  # fmt: skip
def test_toyaml_writes_what_pyyaml_would(value, yaml):
    assert text(f"{{{{ {value}|toyaml }}}}") == yaml


def test_toyaml_takes_its_default_for_what_is_undefined():
    assert text("{{ x|toyaml(None) }} {{ x|toyaml([1]) }}") == "null [1]"
    assert "'x' is undefined" in str(error("{{ x|toyaml }}"))
