"""Plain scalars against PyYAML's own loader, which Forgather uses."""

import math

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from forgather_mem.config.graph.scalars import convert, resolve

YAML_1_2_NUMBERS = {"1e-4": 1e-4, "1e5": 1e5, "1E5": 1e5, "1.0e5": 1e5, "-.5": -0.5, "+.5": 0.5, "-1e+3": -1000.0}


def by_pyyaml(text):
    node = yaml.ScalarNode(yaml.SafeLoader.resolve(yaml.SafeLoader(""), yaml.ScalarNode, text, (True, False)), text)
    if node.tag.endswith((":merge", ":value")):
        return text
    try:
        return yaml.SafeLoader("").construct_object(node)
    except ValueError:
        return ValueError


def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


PLAIN = """
    yes Yes YES yES no on Off OFF true TRUE tRue y n Y N ~ null Null NULL nUll
    0 -0 +1 12 1_000 1__0 0o7 010 -010 0_ 08 09.5 0x1F -0xff 0b11 0b12 1:30 -1:30:00 01:30 1:60 1:30.5 00:30 00:30.5
    1. .5 1.5 1_0.5_0 1.5e+3 1.5e-3 1e 1e+ e5 . .. - + .e5 ._5 .inf -.INF +.Inf .nan .NaN -.nan nan inf
    2024-01-01 2024-1-1 2024-01-01T10:00:00 2024-01-01t1:00:00.5Z 2024-1-1\x0010:00:00\x00+01:30 2024-01-01T10:00:00-5
    = << 1,5 12GiB 1.2.3 --- 0.0.0.0 \u0661\u0662 1\u00b2
"""


@pytest.mark.parametrize("text", PLAIN.split())
def test_a_plain_scalar_means_what_pyyaml_makes_of_it(text):
    text = text.replace("\x00", " ")
    assert same(resolve(text), by_pyyaml(text))


@pytest.mark.parametrize("text", YAML_1_2_NUMBERS)
def test_numbers_of_yaml_1_2_are_numbers(text):
    assert isinstance(by_pyyaml(text), str)  # that is what YAML 1.1 makes of them
    assert resolve(text) == YAML_1_2_NUMBERS[text]


ODD = st.text(alphabet="0123456789+-._:eExXoObBaAfFTZ tyYnN~\n", max_size=14)


@given(st.one_of(ODD, st.text(max_size=8)))
@example("0b_")
@example("2024-02-31")
def test_any_text_means_what_pyyaml_makes_of_it_unless_it_is_a_number_of_yaml_1_2(text):
    assume(not text.endswith("\n") and text not in ("*", "!", "&"))  # no plain scalar of YAML
    expected = by_pyyaml(text)
    try:
        value = resolve(text)
    except ValueError:
        assert expected is ValueError
        return
    if expected is ValueError:  # PyYAML fails on 0b_
        assert value == text
    elif isinstance(value, float) and isinstance(expected, str):
        assert value == float(text.replace("_", ""))
    else:
        assert same(value, expected)


@pytest.mark.parametrize("text", ["2024-02-31", "9999-99-99", "9" * 5000, "0x" + "f" * 2000, "1" + ":59" * 900])
def test_a_value_that_does_not_exist_or_is_too_long_is_refused(text):
    with pytest.raises(ValueError, match=r"is not one|characters at most"):
        resolve(text)


def test_long_text_that_starts_with_a_digit_is_text():
    text = "1 long text " * 200
    assert resolve(text) == text


def test_what_is_not_of_the_type_of_its_standard_tag_is_refused():
    for kind, text in (("int", "two"), ("bool", "1"), ("float", "x"), ("int", "1.5")):
        with pytest.raises(ValueError, match=f"is not a valid {kind}"):
            convert(f"tag:yaml.org,2002:{kind}", text)
