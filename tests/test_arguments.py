"""Every switch, number and share that our parts take is checked when one is built, and named with its value."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from forgather_mem import actions, callbacks, probes, sinks
from forgather_mem.callbacks.base import RuleCallback

# By annotation
WRONG: dict[str, tuple[object, ...]] = {
    "bool": (1, "yes"),
    "int": (0, -1, 2.5, True, "3"),
    "int | None": (0, -1, 2.5, True, "3"),
    "float": (0, -1.0),
}
NEEDED: dict[str, dict[str, Any]] = {"TextgenCallback": {"prompts": ["x"]}, "PrometheusSink": {"path": "a.prom"}}
# Tested in their own files, or any number will do
OTHERS = {"generation", "keep", "max_bytes", "vanishing", "exploding"}


def wrong_arguments() -> Iterator[tuple[type[Any], str, object]]:
    for module in (actions, callbacks, probes, sinks):
        for kind in (getattr(module, name) for name in module.__all__):
            if not inspect.isclass(kind) or kind is actions.HeapHold:
                continue
            for name, parameter in inspect.signature(kind).parameters.items():
                # What our own code alone sets need not be checked: the switches of probes, actions and sinks
                if name not in OTHERS and (parameter.annotation != "bool" or issubclass(kind, RuleCallback)):
                    more = (1.5,) if name.endswith("_frac") else ()
                    yield from ((kind, name, value) for value in (*WRONG.get(str(parameter.annotation), ()), *more))


def test_a_wrong_argument_is_named_when_its_part_is_built() -> None:
    tried = list(wrong_arguments())
    assert len(tried) > 150
    for kind, name, value in tried:
        if (kind, name) != (callbacks.TextgenCallback, "reset_peaks"):
            with pytest.raises(ValueError, match=rf"^{kind.__name__}\({name}={re.escape(repr(value))}\): "):
                kind(**{**NEEDED.get(kind.__name__, {}), name: value})
