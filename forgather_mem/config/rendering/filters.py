"""The filters and tests that a template may use.

These are Jinja's own, without those for HTML (striptags, urlize, xmlattr) and wordwrap; those that rebuild a string
taint their whole result if any input was tainted. Names that begin with a space can't be written in a template: the
compiler inserts them (instrument.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from jinja2 import Undefined, pass_context, pass_environment
from jinja2.exceptions import FilterArgumentError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter
from jinja2.tests import TESTS as JINJA_TESTS

from forgather_mem.config.rendering.taint import TaintedStr, TaintTokens, is_tainted, text_of, untaint
from forgather_mem.config.rendering.yaml_text import write
from forgather_mem.config.source.tokens import TOKEN_CLOSE, TOKEN_OPEN

_JINJA = (
    "abs batch capitalize count d default dictsort filesizeformat first float groupby int items join last length lower "
    "map max min pprint reject rejectattr reverse round select selectattr slice sort string sum title trim truncate "
    "unique upper urlencode wordcount center"
)
_WHOLE = ("center", "filesizeformat", "float", "int", "pprint", "title", "truncate", "urlencode", "wordcount")
_TESTS = (
    "!= < <= == > >= boolean callable defined divisibleby eq equalto even false filter float ge greaterthan gt in "
    "integer iterable le lessthan lower lt mapping ne none number odd sameas sequence string test true undefined upper"
)
_TEXT_TESTS = ("in", "lower", "upper")  # these look at characters themselves
_ABSENT: Final = object()
_JINJA_FILTERS: Final = cast(dict[str, Callable[..., object]], JINJA_FILTERS)
_JINJA_TESTS: Final = cast(dict[str, Callable[..., object]], JINJA_TESTS)


class Surroundings(Protocol):
    """What a filter is given of the sandbox.

    Attributes:
        marks: The strings from outside.
        random: Seeded per render, so that it can be repeated; None until first used.
    """

    marks: TaintTokens
    random: random.Random | None

    def made(self, value: object) -> object: ...

    def undefined(self, hint: str) -> Undefined: ...


def _marking(function: Callable[..., object], *, whole: bool = False) -> Callable[..., object]:
    """A filter or test whose result keeps the taint.

    Args:
        function: Jinja's or ours.
        whole: It is given strings as they are meant; what it makes of them is marked as a whole.
    """
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @pass_context
    def run(context: Context, value: object, *args: object, **kwargs: object) -> object:
        sandbox: Surroundings = context.environment  # type: ignore[assignment]
        outside = whole and (is_tainted(value) or is_tainted(args) or is_tainted(kwargs))
        if whole:
            value, args, kwargs = untaint(value), untaint(args), untaint(kwargs)
        first = {"context": context, "eval_context": context.eval_ctx, "environment": sandbox}.get(passed)
        result = function(value, *args, **kwargs) if first is None else function(first, value, *args, **kwargs)
        return sandbox.marks.mark(result) if outside else sandbox.made(result)

    return run


@pass_environment
def _indent(
    sandbox: Surroundings, value: object, width: int | str = 4, first: bool = False, blank: bool = False
) -> object:
    indent = width if isinstance(width, str) else " " * width
    if isinstance(value, TaintedStr):
        return value.indented(indent, first, blank)
    return _JINJA_FILTERS["indent"](value, indent, first, blank)


@pass_environment
def _replace(sandbox: Surroundings, value: object, old: object, new: object, count: int | None = None) -> object:
    return sandbox.marks.lifted(_text(value)).replace(_text(old), _text(new), -1 if count is None else count)


@pass_environment
def _format(sandbox: Surroundings, value: object, *args: object, **kwargs: object) -> object:
    if args and kwargs:
        raise FilterArgumentError("can't handle positional and keyword arguments at the same time")
    return percent(_text(value), kwargs or args, sandbox.marks)


def _to_json(value: object, indent: int | None = None) -> object:
    text = json.dumps(value, sort_keys=True, indent=indent)
    for char in TOKEN_OPEN, TOKEN_CLOSE:
        text = text.replace(f"\\u{ord(char):04x}", char)
    for char in "<>&'":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _to_yaml(value: object, default: object = _ABSENT) -> object:
    if isinstance(value, Undefined):
        if default is _ABSENT:
            str(value)  # raises an error of its own, which names it
        value = default
    return write(value)


@pass_environment
def _random(sandbox: Surroundings, value: Iterable[object]) -> object:
    items = list(value)
    sandbox.random = sandbox.random or random.Random(0)
    return sandbox.random.choice(items) if items else sandbox.undefined("no random item, the sequence was empty")


@pass_environment
def _attr(sandbox: Surroundings, value: object, name: object) -> object:
    return _JINJA_FILTERS["attr"](sandbox, value, text_of(name))


@pass_environment
def _concat(sandbox: Surroundings, parts: list[object]) -> object:
    """`a ~ b`"""
    return sandbox.made("".join(map(str, parts)))


def _line(text: str) -> str:
    """The output of an include, with a newline at its end."""
    return text if not text or text.endswith("\n") else text + "\n"


@pass_environment
def _haystack(sandbox: Surroundings, value: object) -> object:
    """The right operand of `in`."""
    return sandbox.marks.lifted(value) if type(value) is str else value


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _escape(value: object) -> str:
    return str(_JINJA_FILTERS["forceescape"](value))


_OWN: dict[str, Callable[..., object]] = {
    "attr": _attr,
    "format": _format,
    "indent": _indent,
    "list": list,
    "random": _random,
    "replace": _replace,
    "safe": lambda value: value,
    "tojson": _to_json,
    "toyaml": _to_yaml,
}
FILTERS: Final[dict[str, Callable[..., object]]] = {
    **{name: _marking(function) for name, function in _OWN.items()},
    **{name: _marking(_JINJA_FILTERS[name], whole=name in _WHOLE) for name in _JINJA.split()},
    **dict.fromkeys(("e", "escape", "forceescape"), _marking(_escape, whole=True)),
    " at": pass_context(lambda context, value, origin: origin + str(context.environment.finalize(context, value))),
    " printed": pass_context(lambda context, value: str(context.environment.finalize(context, value))),
    " find": pass_environment(lambda sandbox, *args: sandbox.find(*args)),
    " concat": _concat,
    " line": _line,
    " haystack": _haystack,
}
TESTS: Final[dict[str, Callable[..., object]]] = {
    name: _marking(_JINJA_TESTS[name], whole=True) if name in _TEXT_TESTS else _JINJA_TESTS[name]
    for name in _TESTS.split()
}


def percent(template: str, arguments: object, marks: TaintTokens) -> str:
    """`template % arguments`: tokens in the template's text if that gives the same, else tainted as a whole: a width or
    an escape would count or change the characters of a token."""
    made = str(text_of(template) % untaint(arguments))
    if is_tainted(template):
        return str(marks.mark(made))
    carried = marks.read(str(template) % arguments) if is_tainted(arguments) else made
    return carried if carried == made else str(marks.mark(made))


class Format:
    """The `format` or `format_map` method of a string, for a template.

    Args:
        sandbox: Decides what fields like `{0.name}` may reach.
        marks: The strings from outside.
        template: The string.
        name: Name of the method.
    """

    def __init__(self, sandbox: SandboxedEnvironment, marks: TaintTokens, template: str, name: str) -> None:
        self._formatter = _Formatter(sandbox, marks)
        self._template = template
        self._is_map = name == "format_map"

    def __call__(self, *args: Any, **kwargs: object) -> str:
        if self._is_map and (kwargs or len(args) != 1):
            raise TypeError("format_map takes exactly one argument, a mapping")
        return self._made((), args[0]) if self._is_map else self._made(args, kwargs)

    def _made(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        template = text_of(self._template)
        if is_tainted(self._template):
            made = self._formatter.vformat(template, untaint(args), untaint(kwargs))
            return str(self._formatter.marks.mark(made))
        return self._formatter.vformat(template, args, kwargs)


class _Formatter(SandboxedFormatter):
    def __init__(self, sandbox: SandboxedEnvironment, marks: TaintTokens) -> None:
        super().__init__(sandbox)
        self.marks = marks

    def convert_field(self, value: object, conversion: str | None) -> object:
        if conversion == "a" and is_tainted(value):
            return self.marks.mark(ascii(untaint(value)))
        return super().convert_field(value, conversion)

    def format_field(self, value: object, format_spec: str) -> object:
        return super().format_field(value, str(text_of(format_spec)))
