"""Compares the arguments a template gives with the signature of the callable it names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass
from types import FunctionType

from forgather_mem.errors import did_you_mean


@dataclass(frozen=True, slots=True)
class Parameters:
    """The signature of a callable.

    Attributes:
        positional: Parameters that can be passed by position, in order.
        named: Parameters that can be passed by keyword.
        required: Parameters without a default.
        more_positions: It has `*args`.
        more_names: It has `**kwargs`.
    """

    positional: tuple[str, ...]
    named: frozenset[str]
    required: frozenset[str]
    more_positions: bool
    more_names: bool


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a call can't work: half a sentence, the offending keyword (None for the whole call), and the fix."""

    message: str
    argument: str | None = None
    hint: str | None = None


def parameters_of(function: Callable[..., object], *, follow_wrapped: bool = False) -> Parameters | None:
    """The signature of a callable, or None where Python has none (many functions written in C).

    By default the outermost wrapper counts: what Python accepts is never reported here, although the function inside
    the wrapper may still refuse it. For the same reason a signature that a class only declares (`__signature__`) is
    followed only with `follow_wrapped`.
    """
    if not follow_wrapped and getattr(function, "__signature__", None) is not None:
        return None
    try:
        signature = inspect.signature(function, follow_wrapped=follow_wrapped)
    except (ValueError, TypeError):
        return None
    every = signature.parameters.values()
    plain = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Parameters(
        positional=tuple(p.name for p in plain if p.kind is not p.KEYWORD_ONLY),
        named=frozenset(p.name for p in plain if p.kind is not p.POSITIONAL_ONLY),
        required=frozenset(p.name for p in plain if p.default is p.empty),
        more_positions=any(p.kind is p.VAR_POSITIONAL for p in every),
        more_names=any(p.kind is p.VAR_KEYWORD for p in every),
    )


def python_function(function: Callable[..., object]) -> FunctionType | None:
    """What Python runs for a function or an ordinary class that is written in Python; else None."""
    found: object = function
    if isinstance(function, type):
        makes: object = function.__new__
        is_usual = makes is object.__new__ and type(function).__call__ is type.__call__
        found = function.__init__ if is_usual else None  # type: ignore[misc]  # of this class itself
    return found if isinstance(found, FunctionType) else None


def misfit(takes: Parameters, num_args: int, names: Set[str], *, more_come: bool = False) -> Misfit | None:
    """The first reason why a call with these arguments would fail, or None.

    Args:
        takes: The callable's signature.
        num_args: Number of positional arguments given.
        names: The keywords given.
        more_come: Further arguments may still be added, so none is missing yet.

    >>> misfit(parameters_of(lambda lr, momentum=0: None), 0, {"lr", "momentun"})
    Misfit(message="unknown argument 'momentun'", argument='momentun', hint="did you mean 'momentum'?")
    """
    by_name = names & takes.named
    if num_args == 0 and (takes.more_names or by_name == names) and (more_come or takes.required <= by_name):
        return None
    if num_args > len(takes.positional) and not takes.more_positions:
        return Misfit(f"too many positional arguments ({num_args}, at most {len(takes.positional)})")
    filled = takes.positional[:num_args]
    for name in names:
        if name in filled and name in takes.named:
            return Misfit(f"argument {name!r} is given twice, by position {filled.index(name)} and by name", name)
        if name not in takes.named and not takes.more_names:
            return _unknown(takes, name, names)
    missing = [] if more_come else [name for name in takes.required if name not in by_name and name not in filled]
    if missing:
        order = {name: i for i, name in enumerate(takes.positional)}
        missing.sort(key=lambda name: (order.get(name, len(order)), name))
        shown = ", ".join(map(repr, missing))
        return Misfit(f"missing argument{'s' if len(missing) > 1 else ''} {shown}", None, f"it takes {_list(takes)}")
    return None


def _unknown(takes: Parameters, name: str, names: Collection[str]) -> Misfit:
    if name in takes.positional:
        return Misfit(f"argument {name!r} is taken by position only", name, f"write arg{takes.positional.index(name)}")
    free = sorted(takes.named - set(names))
    return Misfit(f"unknown argument {name!r}", name, did_you_mean(name, free) or f"it takes {_list(takes)}")


def _list(takes: Parameters) -> str:
    names = [*takes.positional, *sorted(takes.named - set(takes.positional))]
    if not names:
        return "no arguments"
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
