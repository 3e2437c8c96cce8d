"""Arguments against signatures, with Python's own binding as the judge."""

import datetime
import functools
import inspect
import logging
import pathlib
import threading

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import forgather_mem.callbacks
from forgather_mem.config.construction.resolve import misfit, parameters_of


def plain(a, b=1, /, c=2, *, d, e=3): ...
def star(a, *args, **kwargs): ...
def only(*, x): ...
def none(): ...


class Empty: ...


class Usual:
    def __init__(self, a, /, b=0, *args, c, **kwargs): ...


class Starred:
    def __init__(*args, x=1): ...


class New:
    def __new__(cls, a):
        return object.__new__(cls)


class Meta(type):
    def __call__(cls, x):
        return x


class Called(metaclass=Meta):
    def __init__(self, y): ...


@functools.wraps(plain)
def wrapper(*args, **kwargs): ...


class Wrapped:
    @functools.wraps(Usual.__init__)
    def __init__(self, *args, **kwargs): ...


OURS = [getattr(forgather_mem.callbacks, name) for name in forgather_mem.callbacks.__all__]
CALLABLES = [
    plain, star, only, none, Empty, Usual, Starred, New, Called, wrapper, Wrapped, Usual(1, c=2).__init__,
    lambda x, y=1: None, functools.partial(plain, 1), inspect.signature, logging.Logger, threading.Thread, pathlib.Path,
    torch.optim.AdamW, torch.nn.Linear, transformers.TrainingArguments, transformers.Trainer, transformers.LlamaConfig,
    transformers.EarlyStoppingCallback, *filter(callable, OURS),
]  # fmt: skip


@pytest.mark.parametrize("function", [dict, int, print, datetime.timedelta, range, max, object(), 3])
def test_where_python_cannot_tell_nothing_is_claimed(function):
    assert parameters_of(function) is None or inspect.signature(function)


def test_a_signature_that_a_class_merely_states_is_not_believed():
    class Stated:
        __signature__ = inspect.Signature()

        def __init__(self, x): ...

    assert parameters_of(Stated) is None


def test_a_wrapper_counts_as_it_is():
    assert parameters_of(wrapper).more_names


@pytest.mark.parametrize(
    "function", CALLABLES, ids=lambda function: getattr(function, "__qualname__", type(function).__name__)
)
@given(data=st.data(), num_args=st.integers(0, 5))
def test_a_misfit_is_found_exactly_where_python_finds_one(function, data, num_args):
    signature = inspect.signature(function, follow_wrapped=False)
    names = data.draw(st.sets(st.sampled_from([*signature.parameters, "y"])))
    try:
        signature.bind(*range(num_args), **dict.fromkeys(names))
        fits = True
    except TypeError:
        fits = False
    found = misfit(parameters_of(function), num_args, names)
    assert (found is None) == fits
    if found is not None:
        assert found.argument is None or found.argument in names
    if fits:
        assert misfit(parameters_of(function), num_args, names, more_come=True) is None


def test_what_is_still_to_come_is_not_missing():
    assert misfit(parameters_of(plain), 0, set(), more_come=True) is None
    assert misfit(parameters_of(plain), 0, {"zz"}, more_come=True).argument == "zz"
    assert misfit(parameters_of(plain), 9, set(), more_come=True) is not None
