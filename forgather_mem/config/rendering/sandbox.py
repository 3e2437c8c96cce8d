"""The Jinja sandbox: what a template may do.

A Jinja environment in which everything not listed here is forbidden: attributes and callables by a table of types,
filters and tests by a table of names. Operators, calls and filters handle tainted strings (taint.py). `optimized` is
off and output is never folded: no part of a template is evaluated while it is compiled. How much a template may do is
not decided here: a stranger's is rendered in a process with limits (stranger.py).
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any, Final

from jinja2 import StrictUndefined, Undefined, pass_context
from jinja2.environment import TemplateModule
from jinja2.exceptions import SecurityError, TemplateRuntimeError, UndefinedError
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, missing

from forgather_mem.config.rendering import filters
from forgather_mem.config.rendering.functions import FUNCTIONS, TIMES
from forgather_mem.config.rendering.taint import TaintedStr, TaintTokens, is_tainted, untaint
from forgather_mem.config.rendering.variables import OutsideDict, OutsideList
from forgather_mem.config.rendering.yaml_text import write

_DATE = "year month day weekday isoweekday isoformat strftime replace"
_TIME = "hour minute second microsecond isoformat strftime replace"
ATTRIBUTES: Final[Mapping[type, frozenset[str]]] = {
    cls: frozenset(names.split())
    for cls, names in {
        str: "capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha "
        "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower "
        "lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
        "splitlines startswith strip swapcase title upper zfill",
        bool: "",
        int: "bit_length bit_count is_integer real imag numerator denominator",
        float: "is_integer real imag",
        list: "count index copy",
        tuple: "count index grouper list",  # the last two belong to the filter groupby
        dict: "get items keys values copy",
        range: "start stop step count index",
        datetime.date: _DATE,
        datetime.time: _TIME,
        datetime.datetime: f"{_DATE} {_TIME} date time timestamp",
        datetime.timedelta: "days seconds microseconds total_seconds",
        LoopContext: "index index0 revindex revindex0 first last length depth depth0 previtem nextitem cycle changed",
        Macro: "name arguments catch_kwargs catch_varargs caller",
        Cycler: "next reset current",
        BlockReference: "super",
    }.items()
}
"""The attributes of each type that a template may use."""

_OPEN_TYPES = (Namespace, TemplateModule)  # their attributes are named by templates
_CALLABLE_TYPES = (Macro, BlockReference, LoopContext, Cycler, Joiner, filters.Format)
_MAKERS = frozenset(map(id, (dict, Namespace, Cycler, Joiner)))


class MissingName(UndefinedError):
    """Something that a template uses does not exist.

    Attributes:
        name: The missing name.
        known: The existing names, if it was looked up in a mapping or a namespace; None for a variable.
    """

    def __init__(self, message: str, name: object, known: Iterable[str] | None) -> None:
        super().__init__(message)
        self.name = name
        self.known = known


class _Missing(StrictUndefined):
    """Strict; its error lists what exists instead."""

    __slots__ = ()
    __repr__ = StrictUndefined.__str__  # raises, also where a list of it is printed

    def __init__(
        self, hint: str | None = None, obj: object = missing, name: Any = None, exc: object = UndefinedError
    ) -> None:
        if name is not None and not isinstance(name, str | int):
            name = type(name).__name__  # the message would print the object
        # Jinja calls `exc` with the message: a class, or a function that makes an error.
        error: Any = self._error if exc is UndefinedError else exc
        super().__init__(hint, obj, name, error)

    def _error(self, message: str | None = None) -> MissingName:
        known = None
        if isinstance(self._undefined_obj, Mapping):
            known = [str(untaint(key)) for key in self._undefined_obj]
            message = f"there is no {self._undefined_name!r} in this mapping"
        elif isinstance(self._undefined_obj, Namespace):
            known = list(object.__getattribute__(self._undefined_obj, "_Namespace__attrs"))
            message = f"there is no {self._undefined_name!r} in this namespace"
        return MissingName(message or "something is undefined", self._undefined_name, known)


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of a `Renderer`.

    Attributes:
        marks: The strings from outside.
        moment: Of the render in progress.
        random: Seeded per render, so that it can be repeated; None until first used.
        paste_values: Values from outside are pasted, as Forgather does, not tainted.
    """

    intercepted_binops = frozenset("%")
    moment: datetime.datetime
    random: random.Random | None

    def __init__(self, marks: TaintTokens, *, paste_values: bool) -> None:
        super().__init__(trim_blocks=True, undefined=_Missing, optimized=False, cache_size=0)
        self.finalize = pass_context(_print)
        self.marks = marks
        self.paste_values = paste_values
        self.filters = dict(filters.FILTERS)
        self.tests = dict(filters.TESTS)
        del self.globals["lipsum"]
        self.globals["range"] = _range
        self.globals.update(FUNCTIONS)
        for name in TIMES:
            self.globals[name] = self._timed(name)
        self._own = {id(self.globals[name]) for name in ("range", *FUNCTIONS, *TIMES)}

    def _timed(self, name: str) -> Callable[[], object]:
        return lambda: TIMES[name](self.moment)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if attr.startswith("_") or self.paste_values:
            return self.paste_values and super().is_safe_attribute(obj, attr, value)
        if isinstance(obj, _OPEN_TYPES):
            return True
        return any(attr in ATTRIBUTES[cls] for cls in type(obj).__mro__ if cls in ATTRIBUTES)

    def is_safe_callable(self, obj: object) -> bool:
        if isinstance(obj, _CALLABLE_TYPES) or id(obj) in _MAKERS or id(obj) in self._own:
            return True
        if self.paste_values:  # then variables may be functions, as in Forgather
            return super().is_safe_callable(obj)
        return isinstance(obj, BuiltinMethodType | MethodType) and self.is_safe_attribute(
            obj.__self__, obj.__name__, obj
        )

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        if not isinstance(value, BuiltinMethodType) or value.__name__ not in ("format", "format_map"):
            return None
        owner = value.__self__
        return filters.Format(self, self.marks, owner, value.__name__) if isinstance(owner, str) else None

    def call(__self, __context: Context, __obj: Any, *args: object, **kwargs: object) -> object:
        self, obj = __self, __obj
        if isinstance(obj, Undefined) or not self.is_safe_callable(obj):
            if isinstance(obj, Undefined):
                obj()  # raises an error of its own
            raise SecurityError(f"a template may not call {_named(obj)}")
        is_own = id(obj) in self._own
        if not is_own and not isinstance(obj, BuiltinMethodType | MethodType | filters.Format):
            return __context.call(obj, *args, **kwargs)
        kwargs.pop("_block_vars", None)  # added by Jinja, for functions that take the context
        kwargs.pop("_loop_vars", None)
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, Undefined):
                str(arg)  # raises an error of its own, which names it
        if is_own and obj is not repr:
            return self._call_own(obj, args, kwargs)
        return self._call_method(obj, args, kwargs)

    def _call_own(self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        result = function(*untaint(args), **untaint(kwargs))
        return self.marks.mark(result) if is_tainted(args) or is_tainted(kwargs) else result

    def _call_method(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and not isinstance(owner, TaintedStr) and (args or kwargs):
            if name == "join":
                args = ([*args[0]], *args[1:])
            if is_tainted(args) or is_tainted(kwargs):
                method = getattr(self.marks.lifted(owner), name)
        elif name == "strftime" and is_tainted(args):
            return self.marks.mark(method(*untaint(args)))
        return self.made(method(*args, **kwargs))

    def made(self, value: object) -> object:
        """A value made by an expression, with its tokens read."""
        return self.marks.read(value) if type(value) is str else value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> object:
        return self.made(filters.percent(left, right, self.marks)) if isinstance(left, str) else left % right

    def concat(self, parts: Iterable[str]) -> str:
        """The output of a macro, a block or a filter's body, as one text."""
        return self.marks.read("".join(parts))


def _range(*bounds: int) -> range:
    return range(*bounds)  # without Jinja's own limit


def _print(context: Context, value: object) -> object:
    """The output of `{{ value }}`."""
    if isinstance(value, str | int):
        return value
    sandbox = context.environment
    assert isinstance(sandbox, Sandbox)
    if isinstance(value, Undefined) or (sandbox.paste_values and (value is None or isinstance(value, float))):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else write(value)
    if value is None:
        return "null"
    if isinstance(value, TemplateModule):
        return str(sandbox.concat(value._body_stream))
    if isinstance(value, OutsideList | OutsideDict | list | tuple | dict | range):
        return str(value)
    if callable(value):
        raise TemplateRuntimeError(f"{_named(value)} can't be printed; call it with ()")
    if isinstance(value, datetime.time | datetime.timedelta) and not sandbox.paste_values:
        return sandbox.marks.mark(str(value))  # YAML would read 1:30:00 as a number
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    raise TemplateRuntimeError(f"{_named(value)} can't be printed; use the filter list, or one of its names")


def _named(value: object) -> str:
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    kinds = {Macro: "macro", BlockReference: "the parent's block"}
    kind = kinds.get(type(value), f"a {type(value).__name__}")
    return f"{kind} {name!r}" if isinstance(name, str) else kind
