"""The Jinja sandbox: what a template may do, and how much of it.

A Jinja environment in which everything not listed here is forbidden: attributes and callables by a table of types,
filters and tests by a table of names. Operators, calls, filters and loops are metered and handle tainted strings
(taint.py). `optimized` is off and output is never folded: no part of a template is evaluated while it is compiled.
"""

from __future__ import annotations

import datetime
import math
import operator
import random
from collections.abc import Callable, Iterable, Mapping, Sized
from itertools import islice
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import StrictUndefined, Undefined, pass_context
from jinja2.environment import TemplateModule
from jinja2.exceptions import SecurityError, TemplateRuntimeError, UndefinedError
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, missing

from forgather_mem.config.rendering import costs, filters, formatting
from forgather_mem.config.rendering.budget import PART_BYTES, BudgetExceeded, RenderBudget, vars_of
from forgather_mem.config.rendering.functions import FUNCTIONS, TIMES, Clock
from forgather_mem.config.rendering.taint import TaintedStr, is_tainted, untaint
from forgather_mem.config.rendering.taint_tokens import TaintTokens
from forgather_mem.config.rendering.variables import OutsideDict, OutsideList
from forgather_mem.config.rendering.yaml_text import YamlWriter

_SHORT = 1_000  # characters that are compared in no time
_OPEN_TYPES = (Namespace, TemplateModule)  # their attributes are named by templates
_CALLABLE_TYPES = (Macro, BlockReference, LoopContext, Cycler, Joiner, formatting.Format)
_MAKERS = frozenset(map(id, (dict, Namespace, Cycler, Joiner)))
_OPERATORS = {"+": operator.add, "-": operator.sub, "/": operator.truediv, "//": operator.floordiv}


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
            known = list(vars_of(self._undefined_obj))
            message = f"there is no {self._undefined_name!r} in this namespace"
        return MissingName(message or "something is undefined", self._undefined_name, known)


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of a `Renderer`.

    Attributes:
        meter: What the render in progress has used.
        marks: The strings from outside.
        clock: The time of the render in progress.
        random: Seeded per render, so that it can be repeated; None until first used.
        paste_values: Values from outside are pasted, as Forgather does, not tainted.
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))
    meter: RenderBudget
    clock: Clock
    random: random.Random | None

    def __init__(self, marks: TaintTokens, *, paste_values: bool) -> None:
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
        self._own = {id(self.globals[name]): rule for name, rule in costs.FUNCTIONS.items()}
        self.yaml = YamlWriter(lambda amount: self.meter.work(amount))

    def _timed(self, name: str) -> Callable[[], object]:
        return lambda: getattr(self.clock, name)()

    def make_range(self, *bounds: int) -> range:
        made = range(*bounds)
        try:
            return self.meter.made(made)
        except OverflowError:
            raise BudgetExceeded(f"range{bounds} is too long") from None

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if attr.startswith("_") or self.paste_values:
            return self.paste_values and super().is_safe_attribute(obj, attr, value)
        if isinstance(obj, _OPEN_TYPES):
            return True
        return any(attr in costs.METHODS[cls] for cls in type(obj).__mro__ if cls in costs.METHODS)

    def is_safe_callable(self, obj: object) -> bool:
        if isinstance(obj, _CALLABLE_TYPES) or id(obj) in _MAKERS or id(obj) in self._own:
            return True
        if self.paste_values:  # then variables may be functions, as in Forgather
            return super().is_safe_callable(obj)
        return isinstance(obj, BuiltinMethodType | MethodType) and self.is_safe_attribute(
            obj.__self__, obj.__name__, obj
        )

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        is_format = isinstance(value, BuiltinMethodType) and value.__name__ in ("format", "format_map")
        return formatting.Format(self, value.__self__, value.__name__) if is_format else None

    def getitem(self, obj: object, argument: object) -> object:
        self.meter.work(1)  # filters with an attribute come here for each of its parts, of each item
        if type(argument) is tuple or (isinstance(argument, str) and len(argument) > _SHORT):
            self.meter.weigh(argument)
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: object) -> object:
        self, obj = __self, __obj
        if isinstance(obj, Undefined) or not self.is_safe_callable(obj):
            if isinstance(obj, Undefined):
                obj()  # raises an error of its own
            raise SecurityError(f"a template may not call {_named(obj)}")
        self.meter.call()
        if args or kwargs:
            self.meter.made(args)
            self.meter.made(kwargs)
        if isinstance(obj, LoopContext):
            args = tuple(self.meter.items(arg) for arg in args)
        if isinstance(obj, Macro | BlockReference | LoopContext | Cycler | Joiner):
            return __context.call(obj, *args, **kwargs)  # type: ignore[arg-type]  # it can be called
        if id(obj) in _MAKERS:
            return self._make(__context, obj, args, kwargs)
        if self.paste_values and not isinstance(obj, BuiltinMethodType | MethodType) and id(obj) not in self._own:
            return __context.call(obj, *args, **kwargs)
        kwargs.pop("_block_vars", None)  # added by Jinja, for functions that take the context
        kwargs.pop("_loop_vars", None)
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, Undefined):
                str(arg)  # raises an error of its own, which names it
        if id(obj) in self._own:
            costs.spend(self.meter, self._own[id(obj)], (), args, kwargs)
            return self._call_own(obj, args, kwargs)
        return self._call_method(obj, args, kwargs)

    def _make(self, context: Context, maker: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
        """`dict(...)`, `namespace(...)`, `cycler(...)`, `joiner(...)`"""
        if maker in (dict, Namespace) and args and not isinstance(args[0], Mapping):
            args = (self._pairs(args[0]), *args[1:])
        for arg in args:
            costs.spend(self.meter, costs.CALLED_BY_JINJA[maker], arg, (), {})
        made = context.call(maker, *args, **kwargs)
        return self.meter.made(made) if maker is dict else made

    def _pairs(self, pairs: Iterable[Iterable[object]]) -> list[tuple[object, ...]]:
        """The pairs that `dict` was given instead of a mapping."""
        listed = [tuple(islice(pair, 3)) for pair in self.meter.items(pairs)]
        keys = [pair[0] for pair in listed if pair]
        self.meter.weigh(keys)
        self.meter.check_keys(keys)
        self.meter.holds_items(listed, 2 * PART_BYTES)
        return listed

    def _call_own(self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if function is repr:
            self.meter.will_print([*args])
            return self.made(repr(*args, **kwargs))
        result = function(*untaint(args), **untaint(kwargs))
        if is_tainted(args) or is_tainted(kwargs):
            result = filters.mark_all(result, self.marks)
        return self.made(result)

    def _call_method(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        costs.spend(self.meter, self._rule(owner, name), owner, args, kwargs)
        if isinstance(owner, str):
            args, kwargs = tuple(formatting.positional(name, args, kwargs)), {}
            formatting.check_method(owner, name, args, self.meter)
            if any(isinstance(arg, TaintedStr) for arg in args) or (name == "join" and is_tainted(args)):
                method = getattr(TaintedStr([(owner, False, "")], self.marks), name)
            if name == "join" and args and not isinstance(args[0], Sized):
                args = (list(self.meter.items(args[0])),)
        elif name == "strftime" and args:
            self.meter.small(len(args[0]), 1_000)
            text = method(*untaint(args))
            return self.made(self.marks.mark(text) if is_tainted(args) else text)
        return self.made(method(*args, **kwargs))

    def _rule(self, owner: object, name: str) -> costs.Rule:
        """What a method costs; without the policy there are methods that nobody has weighed."""
        for cls in type(owner).__mro__:
            if name in costs.METHODS.get(cls, ()):
                return costs.METHODS[cls][name]
        return costs.deep

    def made(self, value: object) -> object:
        """A value made by an expression, with its tokens read and its size checked."""
        if type(value) is str:
            value = self.marks.read(value)
        return self.meter.made(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> object:
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
        """The output of a macro, a block or a filter's body, as one text."""
        parts = list(parts)
        self.meter.made_text(sum(map(str.__len__, parts)))
        return self.marks.read("".join(parts))


def _print(context: Context, value: object) -> object:
    """The output of `{{ value }}`."""
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
        sandbox.meter.will_print(value)
        return sandbox.meter.made(str(value))
    if callable(value):
        raise TemplateRuntimeError(f"{_named(value)} can't be printed; call it with ()")
    if isinstance(value, datetime.time | datetime.timedelta) and not sandbox.paste_values:
        return sandbox.marks.mark(str(value))  # YAML would read 1:30:00 as a number
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    raise TemplateRuntimeError(f"{_named(value)} can't be printed; use the filter list, or one of its names")


def _named(value: object) -> str:
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    kind = "macro" if isinstance(value, Macro) else f"a {type(value).__name__}"
    return f"{kind} {name!r}" if isinstance(name, str) else kind
