"""Numbers that a stranger chose so that they collide are refused as keys; those that people write are not."""

import collections
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.config.construction.value_builtins import LimitExceeded, Values
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError

MODULUS = 2**61 - 1  # sys.hash_info.modulus
ALIKE = 20
COLLIDING = range(0, 300_000 * MODULUS, MODULUS)


def load(text, **variables):
    return ConfigEnvironment(policy=Policy()).load_from_string(text, **variables)


@given(st.lists(st.integers(-(2**31) + 1, 2**31 - 1) | st.text() | st.dates() | st.none() | st.floats(), max_size=400))
def test_what_people_write_as_keys_does_not_collide(keys):
    assert Values().function("set")(keys) == set(keys)


@given(st.sets(st.integers(0, 10**6), min_size=ALIKE + 1), st.sampled_from([int, Fraction]))
def test_more_keys_with_one_hash_than_the_limit_are_too_many(factors, kind):
    keys = [kind(1 + factor * MODULUS) for factor in sorted(factors)]
    make = Values().function("frozenset")
    with pytest.raises(LimitExceeded, match="more than 20 keys"):
        make(keys)
    assert len(make(keys[:ALIKE] * 5)) == ALIKE


def test_a_template_can_not_make_a_set_of_triggers_tuples_or_ranges_that_collide():
    for item in (
        "!call:forgather_mem.triggers:Every {{steps: {0}}}", "!tuple [{0}, 7]", "!call:range [{0}, {1}]",
    ):  # fmt: skip
        items = ", ".join(item.format(1 + i * MODULUS, 2 + i * MODULUS) for i in range(300))
        for maker in "set", "frozenset":
            with pytest.raises(TemplateError, match="more than 20 keys"):
                load(f"a: !call:{maker} [[{items}]]").construct()


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("set", lambda: COLLIDING), ("set", lambda: list(COLLIDING[:9_999])),
        ("frozenset", lambda: zip(COLLIDING[:9_999], strict=True)),
        ("dict", lambda: ((i, 1) for i in COLLIDING[:9_999])), ("dict", lambda: [[i, 1] for i in COLLIDING[:9_999]]),
        ("collections:OrderedDict", lambda: zip(COLLIDING[:9_999], COLLIDING, strict=False)),
        ("collections.OrderedDict", lambda: [COLLIDING[i : i + 2] for i in range(1, 9_999)]),
    ],
)  # fmt: skip
def test_the_built_ins_refuse_keys_that_collide(name, items):
    begin = time.process_time()
    with pytest.raises(LimitExceeded, match="more than 20 keys"):
        Values().function(name)(items())
    assert time.process_time() - begin < 5


def test_an_ordered_dict_is_pythons_own_and_charged():
    made = load("a: !singleton:collections:OrderedDict { arg0: [[b, 1], [a, 2]], c: 3 }").construct("a")
    assert made == collections.OrderedDict(b=1, a=2, c=3)
    assert type(made) is collections.OrderedDict
    with pytest.raises(LimitExceeded):
        Values().function("collections:OrderedDict")([(0, 1)] * 500_001)
    with pytest.raises(ValueError, match="length 3; 2 is required"):
        Values().function("dict")([[1, 2, 3]])


def test_a_key_of_a_template_is_no_number_that_may_collide():
    assert len(load("".join(f"{key}: 1\n" for key in range(-5_000, 5_000))).construct()) == 10_000
    assert list(load(f"{2**60 - 1}: 1\n'{2**60}': 2\n").construct()) == [2**60 - 1, str(2**60)]
    for key in (MODULUS, -(2**60), float(2**60)):
        with pytest.raises(TemplateError, match="a number that is a key is below") as caught:
            load(f"a: 1\n{key}: 1\n")
        assert caught.value.line == 2
