"""Which filters and tests may a template use?

Jinja's own, without those for HTML (striptags, urlize, xmlattr) and wordwrap, which take quadratic time. Each is
metered; those that rebuild a string mark their result as a whole when anything from outside went in. Names
that begin with a space can't be written in a template: the compiler puts them in (instrument.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sized
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, cast

from jinja2 import Undefined, pass_context, pass_environment
from jinja2.exceptions import FilterArgumentError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.tests import TESTS as JINJA_TESTS

from forgather_mem.config import formatting
from forgather_mem.config.marked import Marked, is_outside, real, unmarked
from forgather_mem.config.marks import Marks
from forgather_mem.config.tokens import TOKEN_CLOSE, TOKEN_OPEN

if TYPE_CHECKING:
    from forgather_mem.config.sandbox import Sandbox

_SHALLOW = "abs count d default first items last length reverse"
_LAZY = "map reject rejectattr select selectattr"
_DEEP = "capitalize lower upper dictsort groupby max min sort string unique"
_WHOLE = "center filesizeformat float int pprint title truncate urlencode wordcount"
_ABSENT: Final = object()
_MAX_MARKED = 100_000
_JINJA_FILTERS: Final = cast(dict[str, Callable[..., Any]], JINJA_FILTERS)
_JINJA_TESTS: Final = cast(dict[str, Callable[..., Any]], JINJA_TESTS)


def _guarded(function: Callable[..., Any], *, deep: bool = False, whole: bool = False) -> Callable[..., Any]:
    """A filter or test of Jinja that is metered.

    Args:
        function: As Jinja has it.
        deep: It walks through nested values.
        whole: It is given strings as they are meant; what it makes of them is marked as a whole.
    """
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        sandbox: Sandbox = context.environment  # type: ignore[assignment]
        meter = sandbox.meter
        meter.call()
        if isinstance(value, Iterator):
            value = meter.items(value)
        elif isinstance(value, Marked) and not whole:
            meter.small(len(value), _MAX_MARKED)  # it may be taken apart into characters
        elif isinstance(value, Sized) and not isinstance(value, Undefined):
            meter.work(len(value) >> 3)
        if deep or whole:
            meter.weigh(value, args, kwargs)
        if whole and isinstance(value, str):
            meter.work(len(value) >> 4)
        outside = whole and (is_outside(value) or is_outside(args) or is_outside(kwargs))
        if whole:
            value, args, kwargs = unmarked(value), unmarked(args), unmarked(kwargs)
        first = {"context": context, "eval_context": context.eval_ctx, "environment": sandbox}.get(passed)
        result = function(value, *args, **kwargs) if first is None else function(first, value, *args, **kwargs)
        if isinstance(result, GeneratorType | map | filter):
            return result
        return sandbox.made(mark_all(result, sandbox.marks) if outside else result)

    return run


def _small(name: str) -> Callable[..., Any]:
    """A filter whose numbers are widths or counts."""
    guarded = _guarded(_JINJA_FILTERS[name], whole=name in _WHOLE)

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = context.environment.meter  # type: ignore[attr-defined]
        for number in (*args, *kwargs.values()):
            meter.small(number, 300 if name == "round" else 10_000)
        if name == "indent" and isinstance(value, str):
            return _indent(context, value, *args, **kwargs)
        return guarded(context, value, *args, **kwargs)

    return run


def mark_all(result: Any, marks: Marks) -> Any:
    """What was made of something from outside: its strings are from outside too."""
    if isinstance(result, str):
        return marks.mark(str(result))
    if type(result) in (list, tuple):
        return type(result)(mark_all(item, marks) for item in result)
    return result


@pass_context
def _indent(context: Context, value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    sandbox: Sandbox = context.environment  # type: ignore[assignment]
    indent = width if isinstance(width, str) else " " * width
    sandbox.meter.call()
    sandbox.meter.will_make(len(value) + (value.count("\n") + 1) * len(indent))
    if isinstance(value, Marked):
        return sandbox.made(value.indented(indent, first, blank))
    return sandbox.made(_JINJA_FILTERS["indent"](value, indent, first, blank))


@pass_environment
def _replace(sandbox: Sandbox, value: Any, old: Any, new: Any, count: int | None = None) -> Any:
    sandbox.meter.call()
    sandbox.meter.weigh(value, old, new)
    text, old, new = _text(value), _text(old), _text(new)
    formatting.check_method(text, "replace", (old, new), sandbox.meter)
    return sandbox.made(_lifted(text, sandbox.marks).replace(old, new, -1 if count is None else count))


@pass_environment
def _join(sandbox: Sandbox, value: Any, d: str = "", attribute: str | int | None = None) -> Any:
    sandbox.meter.call()
    sandbox.meter.weigh(value)
    if attribute is not None:
        value = map(make_attrgetter(sandbox, attribute), value)
    parts = [_text(part) for part in sandbox.meter.items(value)]
    sandbox.meter.will_make(sum(map(len, parts)) + len(d) * len(parts))
    return sandbox.made(_lifted(_text(d), sandbox.marks).join(parts))


@pass_environment
def _format(sandbox: Sandbox, value: Any, *args: Any, **kwargs: Any) -> Any:
    if args and kwargs:
        raise FilterArgumentError("can't handle positional and keyword arguments at the same time")
    sandbox.meter.call()
    return sandbox.made(formatting.percent(_text(value), kwargs or args, sandbox.meter, sandbox.marks))


@pass_environment
def _trim(sandbox: Sandbox, value: Any, chars: Any = None) -> Any:
    sandbox.meter.call()
    sandbox.meter.weigh(value, chars)
    text = _text(value)
    formatting.check_method(text, "strip", (chars,), sandbox.meter)
    return sandbox.made(text.strip(chars))


@pass_environment
def _to_json(sandbox: Sandbox, value: Any, indent: int | None = None) -> Any:
    sandbox.meter.call()
    sandbox.meter.weigh(value)
    sandbox.meter.small(indent, 100)
    text = json.dumps(_carried(value), sort_keys=True, indent=indent)
    for char in TOKEN_OPEN, TOKEN_CLOSE:
        text = text.replace(f"\\u{ord(char):04x}", char)
    for char in "<>&'":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return sandbox.made(text)


def _carried(value: Any) -> Any:
    """Marked strings as the text with their tokens, for what looks at characters itself."""
    if isinstance(value, Marked):
        return str(value)
    if isinstance(value, dict):
        return {_carried(key): _carried(item) for key, item in value.items()}
    return [_carried(item) for item in value] if isinstance(value, list | tuple) else value


@pass_environment
def _to_yaml(sandbox: Sandbox, value: Any, default: Any = _ABSENT) -> Any:
    if isinstance(value, Undefined):
        if default is _ABSENT:
            str(value)  # raises its own error, which names it
        value = default
    sandbox.meter.weigh(value)
    return sandbox.made(sandbox.yaml.write(value))


@pass_environment
def _list(sandbox: Sandbox, value: Any) -> list[Any]:
    sandbox.meter.call()
    return sandbox.meter.made(list(sandbox.meter.items(value)))


@pass_environment
def _random(sandbox: Sandbox, value: Any) -> Any:
    items = _list(sandbox, value)
    sandbox.random = sandbox.random or random.Random(0)
    return sandbox.random.choice(items) if items else sandbox.undefined("no random item, the sequence was empty")


@pass_context
def _sum(context: Context, value: Any, attribute: str | int | None = None, start: float = 0) -> Any:
    if not isinstance(start, int | float):
        raise FilterArgumentError("sum adds numbers: start must be one; use join for strings")
    return _guarded(_JINJA_FILTERS["sum"])(context, value, attribute=attribute, start=start)


@pass_environment
def _attr(sandbox: Sandbox, value: Any, name: Any) -> Any:
    return _JINJA_FILTERS["attr"](sandbox, value, real(name))


@pass_environment
def _escape(sandbox: Sandbox, value: Any) -> Any:
    sandbox.meter.call()
    sandbox.meter.weigh(value)
    text = _text(value)
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ('"', "&#34;")):
        text = text.replace(char, entity)
    return sandbox.made(text)


@pass_environment
def _concat(sandbox: Sandbox, parts: list[Any]) -> Any:
    """`a ~ b`"""
    sandbox.meter.weigh(parts)
    texts = [_text(part) for part in parts]
    sandbox.meter.will_make(sum(map(len, texts)))
    return sandbox.made("".join(map(str, texts)))


@pass_environment
def _line(sandbox: Sandbox, text: str) -> str:
    """What an include printed, with a newline at its end."""
    return text if not text or text.endswith("\n") else text + "\n"


@pass_environment
def _slice(sandbox: Sandbox, value: Any, *bounds: int | None) -> Any:
    """`a[1:2]`"""
    return sandbox.made(value[slice(*bounds)])


@pass_environment
def _weighed(sandbox: Sandbox, value: Any) -> Any:
    """What is compared or becomes a key."""
    sandbox.meter.weigh(value)
    return value


@pass_environment
def _haystack(sandbox: Sandbox, value: Any) -> Any:
    """What stands right of `in`."""
    sandbox.meter.weigh(value)
    return _lifted(value, sandbox.marks) if type(value) is str else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _lifted(text: str, marks: Marks) -> str:
    """A string whose methods keep the marks of their arguments."""
    return text if isinstance(text, Marked) else Marked([(text, False, "")], marks)


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    **{name: _guarded(_JINJA_FILTERS[name]) for name in (*_SHALLOW.split(), *_LAZY.split())},
    **{name: _guarded(_JINJA_FILTERS[name], deep=True) for name in _DEEP.split()},
    **{name: _guarded(_JINJA_FILTERS[name], whole=True) for name in _WHOLE.split()},
    **{name: _small(name) for name in ("batch", "center", "indent", "round", "slice", "truncate")},
    "attr": _attr,
    "e": _escape,
    "escape": _escape,
    "forceescape": _escape,
    "format": _format,
    "join": _join,
    "list": _list,
    "random": _random,
    "replace": _replace,
    "safe": lambda value: value,
    "sum": _sum,
    "tojson": _to_json,
    "toyaml": _to_yaml,
    "trim": _trim,
    " items": pass_environment(lambda sandbox, value, weight: sandbox.meter.items(value, weight)),
    " work": pass_environment(lambda sandbox, weight: sandbox.meter.work(weight)),
    " at": pass_context(lambda context, value, origin: origin + str(context.environment.finalize(context, value))),
    " printed": pass_context(lambda context, value: str(context.environment.finalize(context, value))),
    " find": pass_environment(lambda sandbox, *args: sandbox.find(*args)),
    " concat": _concat,
    " line": _line,
    " slice": _slice,
    " weighed": _weighed,
    " haystack": _haystack,
}
_COMPARING = "== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in"
TESTS: Final[dict[str, Callable[..., Any]]] = {
    **{name: test for name, test in _JINJA_TESTS.items() if name != "escaped"},
    **{name: _guarded(_JINJA_TESTS[name], whole=True) for name in (*_COMPARING.split(), "lower", "upper")},
}
