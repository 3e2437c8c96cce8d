"""Numbers that a stranger chose so that they collide are refused as keys; those that people write are not."""

import collections
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.config.collisions import MAX_NUMBERS, is_choosable, too_many
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy import Policy
from forgather_mem.config.values import TooMuch, Values
from forgather_mem.errors import TemplateError

MODULUS = 2**61 - 1  # sys.hash_info.modulus
COLLIDING = range(0, 300_000 * MODULUS, MODULUS)


def load(text, **variables):
    return ConfigEnvironment(policy=Policy()).load_from_string(text, **variables)


@given(st.integers(-(2**31) + 1, 2**31 - 1) | st.text() | st.dates() | st.none())
def test_what_people_write_as_keys_is_not_choosable(key):
    assert not is_choosable(key)


@given(st.lists(st.integers(2**31).map(lambda number: (number,)) | st.floats(), min_size=MAX_NUMBERS + 1))
def test_more_numbers_than_the_limit_are_too_many(keys):
    assert too_many(keys)
    assert not too_many(keys[:MAX_NUMBERS])


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("set", lambda: COLLIDING), ("set", lambda: list(COLLIDING[:9_999])),
        ("frozenset", lambda: zip(COLLIDING[:9_999], strict=True)),
        ("dict", lambda: ((i, 1) for i in COLLIDING[:9_999])), ("dict", lambda: [[i, 1] for i in COLLIDING[:9_999]]),
        ("collections:OrderedDict", lambda: enumerate(COLLIDING[:9_999], start=2**31)),
        ("collections.OrderedDict", lambda: [COLLIDING[i : i + 2] for i in range(1, 9_999)]),
    ],
)  # fmt: skip
def test_the_built_ins_refuse_keys_that_collide(name, items):
    begin = time.process_time()
    with pytest.raises(TooMuch, match="more than 100 keys"):
        Values().function(name)(items())
    assert time.process_time() - begin < 5


def test_an_ordered_dict_is_pythons_own_and_charged():
    made = load("a: !singleton:collections:OrderedDict { arg0: [[b, 1], [a, 2]], c: 3 }").construct("a")
    assert made == collections.OrderedDict(b=1, a=2, c=3)
    assert type(made) is collections.OrderedDict
    values = Values(1_000)
    with pytest.raises(TooMuch):
        values.function("collections:OrderedDict")(enumerate(range(10**9)))
    with pytest.raises(ValueError, match="length 3; 2 is required"):
        Values().function("dict")([[1, 2, 3]])


def test_a_template_has_few_keys_that_can_be_chosen():
    keys = [i * MODULUS for i in range(1, MAX_NUMBERS + 1)]
    assert list(load("".join(f"{key}: 1\n" for key in keys)).construct()) == keys
    with pytest.raises(TemplateError, match="more than 100 keys") as caught:
        load("".join(f"{key}: 1\n" for key in [*keys, 0.5]))
    assert caught.value.line == MAX_NUMBERS + 1
    assert len(load("".join(f"{key}: 1\n" for key in range(5_000))).construct()) == 5_000


def test_dict_in_a_template_is_pythons_own_and_refuses_keys_that_collide():
    text = "a: {{ dict([('b', 1), ('c', x)], d=3) }}\ne: {{ dict({'f': 1}) }}\ng: {{ dict() }}"
    assert load(text, x=2).construct() == {"a": {"b": 1, "c": 2, "d": 3}, "e": {"f": 1}, "g": {}}
    with pytest.raises(TemplateError, match="more than 100 keys"):
        load(f"a: {{{{ dict(range(0, {190_000 * MODULUS}, {MODULUS}) | batch(2)) }}}}")
