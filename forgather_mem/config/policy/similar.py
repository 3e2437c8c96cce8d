"""Finds the name a person may have meant by one that is not on the allow list."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from forgather_mem.config.policy.allowlist import ALIASES, BUILTINS, EXACT, GRANTS, VALUE_FUNCTIONS
from forgather_mem.errors import nearest

_PACKAGES = ("forgather_mem", "forgather_mem.callbacks", "forgather_mem.sinks")
"""Packages of ours that list their names without loading what they name."""

_NEAR_MODULE, _NEAR_NAME = 0.85, 0.8


def similar_name(text: str) -> str | None:
    """The name, open by default, that looks most like a refused one; None if none does.

    >>> similar_name("forgather_mem.calbacks:TBMemoryLoger"), similar_name("datetime:timedleta")
    ('forgather_mem.callbacks:TBMemoryLogger', 'datetime:timedelta')
    >>> similar_name("PeakMemory"), similar_name("sortd"), similar_name("my_module:Thing")
    ('forgather_mem.callbacks:PeakMemory', 'sorted', None)
    """
    module, colon, name = text.partition(":")
    if not colon:
        return _of_any_module(text)
    known = _known()
    near_module = module if module in known else nearest(module, known, _NEAR_MODULE)
    if near_module is None:
        return None
    names = known[near_module]
    near = name if name in names or not names else nearest(name, names, _NEAR_NAME)
    found = f"{near_module}:{near}"
    return found if near is not None and found != text else None


def _of_any_module(text: str) -> str | None:
    if near := nearest(text, (*BUILTINS, *VALUE_FUNCTIONS), _NEAR_NAME):
        return near
    places = {name: package for package in reversed(_PACKAGES) for name in _listed_in(package)}
    near = nearest(text, places, _NEAR_NAME)
    return f"{places[near]}:{near}" if near else None


def _known() -> dict[str, list[str]]:
    """Names by module; none where a module can't tell them without being imported."""
    known: dict[str, list[str]] = {grant.defined_in: [] for grant in GRANTS}
    known.update({package: list(_listed_in(package)) for package in _PACKAGES})
    for entry in (*EXACT, *ALIASES):
        module, _, name = entry.partition(":")
        known.setdefault(module, []).append(name)
    return known


def _listed_in(package: str) -> Iterable[str]:
    names: Iterable[str] = importlib.import_module(package).__all__
    return [name for name in names if package != "forgather_mem" or f"{package}:{name}" in EXACT]
