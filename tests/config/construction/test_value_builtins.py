"""The value built-ins against Python's own, and their limit against what would be a bomb."""

import builtins
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.config.construction.value_builtins import LimitExceeded, Values
from forgather_mem.config.policy.allowlist import BUILTINS, VALUE_FUNCTIONS

numbers = st.lists(st.integers(-100, 100), min_size=1, max_size=20)


def shown(value):
    return list(value) if hasattr(value, "__next__") else value


@pytest.mark.parametrize(
    "name", ["list", "tuple", "set", "frozenset", "sum", "min", "max", "sorted", "len", "enumerate"]
)
@given(items=numbers)
def test_they_give_what_pythons_own_give(name, items):
    assert shown(Values().function(name)(items)) == shown(getattr(builtins, name)(items))
    assert shown(Values().function(name)(iter(items) if name != "len" else items)) == shown(
        getattr(builtins, name)(items)
    )


@given(start=st.integers(-50, 50), stop=st.integers(-50, 50), step=st.integers(-5, 5).filter(bool))
def test_a_range_is_pythons_own(start, stop, step):
    assert Values().function("range")(start, stop, step) == range(start, stop, step)


@given(start=st.integers(), stop=st.integers(), step=st.integers().filter(bool))
def test_a_range_is_either_small_or_refused(start, stop, step):
    try:
        made = Values(1000).function("range")(start, stop, step)
    except LimitExceeded:
        assert abs(stop - start) >= 1000
    else:
        assert len(made) <= 1000


def test_every_name_of_the_table_has_a_function_and_no_other_name_has():
    for name in (*BUILTINS, *VALUE_FUNCTIONS):
        assert callable(Values().function(name))
    for name in ("eval", "getattr", "open", "map", "type", "", "os"):
        assert Values().function(name) is None


def test_parts_of_a_mapping():
    mapping = {"a": 1, "b": 2}
    assert [list(Values().function(name)(mapping)) for name in ("items", "keys", "values")] == [
        [("a", 1), ("b", 2)], ["a", "b"], [1, 2],
    ]  # fmt: skip
    assert Values().function("getitem")(mapping, "b") == 2


def test_calls_share_one_limit():
    values = Values(1000)
    function = values.function("list")
    for _ in range(3):
        function(range(300))
    with pytest.raises(LimitExceeded, match="1,000 items"):
        function(range(300))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("range", [10**30]), ("list", [range(10**12)]), ("set", [range(10**9)]), ("sum", [range(10**15)]),
        ("max", [range(10**15)]), ("sorted", [range(10**9)]), ("dict", [zip(range(10**9), range(10**9), strict=True)]),
        ("str", [["x" * 10**7]]), ("tuple", [iter(int, 1)]), ("min", [enumerate(range(10**12))]),
    ],
)  # fmt: skip
def test_what_would_be_a_bomb_is_refused_at_once(name, args):
    begin = time.process_time()
    with pytest.raises(LimitExceeded):
        Values().function(name)(*args)
    assert time.process_time() - begin < 5


def test_a_shared_part_counts_each_time():
    part = (0,)
    for _ in range(60):
        part = (part, part)
    for name in ("str", "set", "sorted", "max"):
        with pytest.raises(LimitExceeded):
            Values(50_000).function(name)([part])


def test_functions_that_would_call_others_take_none():
    for name in ("sorted", "min", "max"):
        with pytest.raises(TypeError):
            Values().function(name)([1, 2], key=print)
    with pytest.raises(TypeError, match="sum adds numbers"):
        Values().function("sum")([[1], [2]], [])


def test_a_round_to_very_many_digits_is_refused():
    with pytest.raises(ValueError, match="400 digits at most"):
        Values().function("round")(5, -(10**9))
    assert Values().function("round")(2.567, 1) == 2.6
