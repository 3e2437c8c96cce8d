"""What parts of a user return reaches records as plain, finite numbers, or is refused."""

import json
import math

import numpy as np
import pytest

from forgather_mem.telemetry.plain_numbers import plain_numbers


class Celsius(float):
    """A number of a class of its own, which a file could not name."""


def test_numbers_of_any_kind_become_plain_ones() -> None:
    found = plain_numbers({"a": 3, "b": 0.5, "c": np.float32(0.5), "d": np.int64(7), "e": True, "f": Celsius(20)})
    assert found == {"a": 3, "b": 0.5, "c": 0.5, "d": 7.0, "e": 1.0, "f": 20.0}
    assert {type(value) for value in found.values()} == {int, float}
    assert type(found["a"]) is int, "a count of bytes keeps all its digits"
    assert json.loads(json.dumps(found)) == found


def test_what_is_not_finite_is_left_out() -> None:
    assert plain_numbers({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}) == {"d": 1.0}
    assert plain_numbers(None) == plain_numbers({}) == {}


@pytest.mark.parametrize("values", [{1: 1.0}, {"a": "text"}, {"a": [1]}, {"a": None}, {"a": 10**400}, [("a", 1)], "a"])
def test_all_else_is_refused(values: object) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError, OverflowError)):
        plain_numbers(values)  # type: ignore[arg-type]
