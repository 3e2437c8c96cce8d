"""What may a template do, and how much of it?

A Jinja environment in which everything is forbidden that is not named here: attributes and callables by a
written table of types, filters and tests by one of names. Operators, calls, filters and loops are metered, and
each knows what to do with strings from outside (marked.py). `optimized` is off and output is never folded:
nothing of a template is computed while it is compiled.
"""

from __future__ import annotations

import datetime
import math
import operator
import random
from collections.abc import Callable, Iterable, Mapping, Sized
from itertools import islice
from types import BuiltinMethodType, MethodType
from typing import Any, Final

from jinja2 import StrictUndefined, Undefined, pass_context
from jinja2.environment import TemplateModule
from jinja2.exceptions import SecurityError, TemplateRuntimeError, UndefinedError
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, missing

from forgather_mem.config import filters, formatting
from forgather_mem.config.collisions import MAX_NUMBERS, too_many
from forgather_mem.config.functions import FUNCTIONS, TIMES, Clock
from forgather_mem.config.marked import Marked, is_outside, unmarked
from forgather_mem.config.marks import Marks
from forgather_mem.config.meter import Meter, TooMuch, vars_of
from forgather_mem.config.outside import OutsideDict, OutsideList
from forgather_mem.config.yaml_text import YamlWriter

_STRING = frozenset(
    (
        "capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format", "format_map", "index",
        "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable",
        "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix",
        "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines",
        "startswith", "strip", "swapcase", "title", "upper", "zfill",
    )
)  # fmt: skip
_DATE = frozenset(("year", "month", "day", "weekday", "isoweekday", "isoformat", "strftime", "replace"))
_TIME = frozenset(("hour", "minute", "second", "microsecond", "isoformat", "strftime", "replace"))
_LOOP = frozenset(
    (
        "index", "index0", "revindex", "revindex0", "first", "last", "length", "cycle", "depth", "depth0", "previtem",
        "nextitem", "changed",
    )
)  # fmt: skip
_ATTRIBUTES: Final[Mapping[type, frozenset[str]]] = {
    str: _STRING,
    bool: frozenset(),
    int: frozenset(("bit_length", "bit_count", "is_integer", "real", "imag", "numerator", "denominator")),
    float: frozenset(("is_integer", "real", "imag")),
    list: frozenset(("count", "index", "copy")),
    tuple: frozenset(("count", "index", "grouper", "list")),  # the last two are of the filter groupby
    dict: frozenset(("get", "items", "keys", "values", "copy")),
    range: frozenset(("start", "stop", "step", "count", "index")),
    datetime.date: _DATE,
    datetime.time: _TIME,
    datetime.datetime: _DATE | _TIME | {"date", "time", "timestamp"},
    datetime.timedelta: frozenset(("days", "seconds", "microseconds", "total_seconds")),
    LoopContext: _LOOP,
    Macro: frozenset(("name", "arguments", "catch_kwargs", "catch_varargs", "caller")),
    Cycler: frozenset(("next", "reset", "current")),
    BlockReference: frozenset(("super",)),
}
_OPEN_TYPES = (Namespace, TemplateModule)  # they have the names that templates gave them
_CALLABLE_TYPES = (Macro, BlockReference, LoopContext, Cycler, Joiner, formatting.Format)
_MAKERS = frozenset(map(id, (dict, Namespace, Cycler, Joiner)))
_OPERATORS = {"+": operator.add, "-": operator.sub, "/": operator.truediv, "//": operator.floordiv}


class MissingName(UndefinedError):
    """Something that a template uses does not exist.

    Attributes:
        name: What was asked for.
        known: The names there are, when it was asked of a mapping or a namespace; None for a variable.
    """

    def __init__(self, message: str, name: object, known: Iterable[str] | None) -> None:
        super().__init__(message)
        self.name = name
        self.known = known


class _Missing(StrictUndefined):
    """Strict, and its error says what there is instead."""

    __slots__ = ()

    def __init__(
        self, hint: str | None = None, obj: Any = missing, name: Any = None, exc: Any = UndefinedError
    ) -> None:
        if name is not None and not isinstance(name, str | int):
            name = type(name).__name__  # the message would print it
        # Jinja calls `exc` with the message: a class, or something that makes an error.
        error: Any = self._error if exc is UndefinedError else exc
        super().__init__(hint, obj, name, error)

    def _error(self, message: str | None = None) -> MissingName:
        known = None
        if isinstance(self._undefined_obj, Mapping):
            known = [str(unmarked(key)) for key in self._undefined_obj]
            message = f"there is no {self._undefined_name!r} in this mapping"
        elif isinstance(self._undefined_obj, Namespace):
            known = list(vars_of(self._undefined_obj))
            message = f"there is no {self._undefined_name!r} in this namespace"
        return MissingName(message or "something is undefined", self._undefined_name, known)


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of a `Renderer`.

    Attributes:
        meter: What the render in progress has used.
        marks: The strings from outside.
        clock: The time of the render in progress.
        random: Seeded for each render, so that it can be repeated; None until somebody asks.
        paste_values: Values from outside are pasted as Forgather does, not marked.
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))
    meter: Meter
    clock: Clock
    random: random.Random | None

    def __init__(self, marks: Marks, *, paste_values: bool) -> None:
        super().__init__(trim_blocks=True, undefined=_Missing, optimized=False, cache_size=0)
        self.finalize = pass_context(_print)
        self.marks = marks
        self.paste_values = paste_values
        self.filters: dict[str, Any] = filters.FILTERS.copy()
        self.tests: dict[str, Any] = filters.TESTS.copy()
        del self.globals["lipsum"]
        self.globals["range"] = self.make_range
        self.globals.update(FUNCTIONS)
        for name in TIMES:
            self.globals[name] = self._timed(name)
        self._own = {id(function): function for function in map(self.globals.get, ("range", *FUNCTIONS, *TIMES))}
        self.yaml = YamlWriter()

    def _timed(self, name: str) -> Callable[[], Any]:
        return lambda: getattr(self.clock, name)()

    def make_range(self, *bounds: int) -> range:
        made = range(*bounds)
        try:
            return self.meter.made(made)
        except OverflowError:
            raise TooMuch(f"range{bounds} is too long") from None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_") or self.paste_values:
            return self.paste_values and super().is_safe_attribute(obj, attr, value)
        if isinstance(obj, _OPEN_TYPES):
            return True
        return any(attr in _ATTRIBUTES[cls] for cls in type(obj).__mro__ if cls in _ATTRIBUTES)

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, _CALLABLE_TYPES) or id(obj) in _MAKERS or id(obj) in self._own:
            return True
        if self.paste_values:  # then functions may be given, as Forgather's users do
            return super().is_safe_callable(obj)
        return isinstance(obj, BuiltinMethodType | MethodType) and self.is_safe_attribute(
            obj.__self__, obj.__name__, obj
        )

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        is_format = isinstance(value, BuiltinMethodType) and value.__name__ in ("format", "format_map")
        return formatting.Format(self, value.__self__, value.__name__) if is_format else None

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(argument) is tuple:
            self.meter.weigh(argument)
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self, obj = __self, __obj
        if isinstance(obj, Undefined) or not self.is_safe_callable(obj):
            if isinstance(obj, Undefined):
                obj()  # raises its own error
            raise SecurityError(f"a template may not call {_named(obj)}")
        self.meter.call()
        if args or kwargs:
            self.meter.made(args)
            self.meter.made(kwargs)
        if isinstance(obj, LoopContext):
            args = tuple(self.meter.items(arg) for arg in args)
        if obj is dict and args and not isinstance(args[0], Mapping):
            args = (self._pairs(args[0]), *args[1:])
        if isinstance(obj, Macro | BlockReference | LoopContext | Cycler | Joiner) or id(obj) in _MAKERS:
            return __context.call(obj, *args, **kwargs)
        if self.paste_values and not isinstance(obj, BuiltinMethodType | MethodType) and id(obj) not in self._own:
            return __context.call(obj, *args, **kwargs)
        kwargs.pop("_block_vars", None)  # put there by Jinja, for functions that are given the context
        kwargs.pop("_loop_vars", None)
        self.meter.weigh(args, kwargs)
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, Undefined):
                str(arg)  # raises its own error, which names it
        if id(obj) in self._own:
            return self._call_own(obj, args, kwargs)
        return self._call_method(obj, args, kwargs)

    def _pairs(self, pairs: Any) -> list[tuple[Any, ...]]:
        """What `dict` is given besides a mapping."""
        listed = [tuple(islice(pair, 3)) for pair in self.meter.items(pairs)]
        if too_many(pair[0] for pair in listed if pair):
            raise TooMuch(f"more than {MAX_NUMBERS} keys are fractions or numbers beyond 2**31")
        return listed

    def _call_own(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is repr:
            return self.made(repr(*args, **kwargs))
        result = function(*unmarked(args), **unmarked(kwargs))
        if is_outside(args) or is_outside(kwargs):
            result = filters.mark_all(result, self.marks)
        return self.made(result)

    def _call_method(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str):
            formatting.check_method(owner, name, args, self.meter)
            if any(isinstance(arg, Marked) for arg in args) or (name == "join" and is_outside(args)):
                method = getattr(Marked([(owner, False, "")], self.marks), name)
            if name == "join" and args and not isinstance(args[0], Sized):
                args = (list(self.meter.items(args[0])),)
        elif name == "strftime" and args:
            self.meter.small(len(args[0]), 1_000)
            text = method(*unmarked(args))
            return self.made(self.marks.mark(text) if is_outside(args) else text)
        return self.made(method(*args, **kwargs))

    def made(self, value: Any) -> Any:
        """A value that an expression made, its marks read, checked for its size."""
        if type(value) is str:
            value = self.marks.read(value)
        return self.meter.made(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.work(1)
        if operator in _OPERATORS:
            if operator == "+" and isinstance(left, str) and isinstance(right, str):
                self.meter.will_make(len(left) + len(right))
            return self.made(_OPERATORS[operator](left, right))
        if operator == "%":
            if isinstance(left, str):
                return self.made(formatting.percent(left, right, self.meter, self.marks))
            return left % right
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int) and abs(left) > 1 and right > 0:
                self.meter.bits(left.bit_length() * right)
            return self.made(left**right)
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                self.meter.repeat(value, times)
        return self.made(left * right)

    def concat(self, parts: Iterable[str]) -> str:
        """What a macro, a block or a filter's body printed, as one text."""
        parts = list(parts)
        self.meter.made_text(sum(map(str.__len__, parts)))
        return self.marks.read("".join(parts))


def _print(context: Context, value: Any) -> Any:
    """What `{{ value }}` writes."""
    if isinstance(value, str | int):
        return value
    sandbox = context.environment
    assert isinstance(sandbox, Sandbox)
    if isinstance(value, Undefined) or (sandbox.paste_values and (value is None or isinstance(value, float))):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else sandbox.yaml.write(value)
    if value is None:
        return "null"
    if isinstance(value, TemplateModule):
        return str(sandbox.concat(value._body_stream))
    if isinstance(value, OutsideList | OutsideDict | list | tuple | dict | range):
        sandbox.meter.weigh(value)
        return sandbox.meter.made(str(value))
    if callable(value):
        raise TemplateRuntimeError(f"{_named(value)} can't be printed; call it with ()")
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    raise TemplateRuntimeError(f"{_named(value)} can't be printed; use the filter list, or one of its names")


def _named(value: object) -> str:
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    kind = "macro" if isinstance(value, Macro) else f"a {type(value).__name__}"
    return f"{kind} {name!r}" if isinstance(name, str) else kind
