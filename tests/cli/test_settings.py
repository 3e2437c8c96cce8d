"""`--set key=value`, as people type it."""

from __future__ import annotations

import datetime

import pytest
import typer

from forgather_mem.cli.settings import parse_settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", 30),
        ("1e-4", 0.0001),
        ("true", True),
        ("null", None),
        ("", None),
        ("'30'", "30"),
        ("callbacks/watch.yaml", "callbacks/watch.yaml"),
        ("a=b", "a=b"),
        ("[1, two, {three: 3}]", [1, "two", {"three": 3}]),
        ("2024-01-31", datetime.date(2024, 1, 31)),
    ],
)
def test_a_value_is_one_yaml_value(text: str, value: object) -> None:
    assert parse_settings([f"key={text}"]) == {"key": value}


def test_dotted_keys_make_nested_variables_and_the_last_one_wins() -> None:
    assert parse_settings(["a.b=1", "a.c=2", "a.b=3", "d=4", "d.e=5"]) == {"a": {"b": 3, "c": 2}, "d": {"e": 5}}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("steps", "'steps': write key=value"),
        ("=3", "write key=value"),
        ("a..b=3", "write key=value"),
        ("2nd=3", "write key=value"),
        ("a=[1, 2", "expected ',' or ']'"),
        ("a=!singleton:os:system", "is for templates"),
        ("a={[1]: 2}", "unhashable"),
        ("a=2024-99-99", "month"),
        ("a=" + "[" * 5000, "a=["),
    ],
)
def test_what_is_no_key_and_plain_value_is_refused_with_the_text(setting: str, message: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        parse_settings([setting])
    assert message in str(caught.value)


def test_an_alias_or_a_tag_of_python_makes_nothing_but_data() -> None:
    assert parse_settings(["a=!!python/name:os.system ''"]) == {"a": ""}
