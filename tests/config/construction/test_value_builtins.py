"""The value built-ins against Python's own, and their limit against what would be a bomb."""

import builtins
import time

import pytest
from hypothesis import example, given
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
@example(start=0, stop=500_000, step=1)
@example(start=0, stop=500_001, step=1)
@example(start=-1, stop=-(10**40), step=-1)
def test_a_range_is_either_small_or_refused(start, stop, step):
    try:
        made = Values().function("range")(start, stop, step)
    except LimitExceeded:
        assert abs(stop - start) > 500_000
    else:
        assert len(made) <= 500_000


def test_every_name_of_the_table_has_a_function_and_no_other_name_has():
    for name in (*BUILTINS, *VALUE_FUNCTIONS):
        assert callable(Values().function(name))
    for name in ("eval", "getattr", "open", "map", "type", "", "os"):
        assert Values().function(name) is None


def test_calls_share_one_limit():
    values = Values()
    function = values.function("list")
    for _ in range(3):
        function(range(150_000))
    with pytest.raises(LimitExceeded, match="500,000 items"):
        values.function("sum")(range(150_000))


def test_a_text_counts_for_its_characters_and_what_is_in_an_item_does_not():
    for name, argument in (("list", "x" * 10**6), ("len", [[0] * 10**6] * 1_000), ("str", ["x" * 10**6])):
        values = Values()
        for _ in range(7):
            values.function(name)(argument)
    values = Values()
    values.function("len")("x" * 7_900_000)
    with pytest.raises(LimitExceeded):
        values.function("len")("x" * 200_000)


def test_every_kind_of_collection_counts():
    mapping = dict.fromkeys(range(300_000))
    for collection in (mapping, mapping.items(), mapping.values(), range(300_000), [*mapping], {*mapping}, (*mapping,)):
        values = Values()
        values.function("enumerate")(collection)
        with pytest.raises(LimitExceeded):
            values.function("zip")(collection)


@pytest.mark.parametrize("start", [10**30, 10**12, 10**9])
def test_a_range_that_would_be_a_bomb_is_refused_at_once(start):
    begin = time.process_time()
    with pytest.raises(LimitExceeded):
        Values().function("range")(start)
    assert time.process_time() - begin < 1


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
