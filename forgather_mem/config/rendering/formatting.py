"""String formatting and string methods for templates, with widths and counts limited."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2.sandbox import SandboxedFormatter

from forgather_mem.config.rendering.budget import MARKED_BYTES, PART_BYTES, RenderBudget, printed_len
from forgather_mem.config.rendering.taint import TaintedStr, is_tainted, text_of, untaint
from forgather_mem.config.rendering.taint_tokens import TaintTokens

if TYPE_CHECKING:
    from forgather_mem.config.rendering.sandbox import Sandbox

_WIDTH = r"[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?(a?)"
_PERCENT = re.compile("%" + _WIDTH)
_PERCENT_NAMED = re.compile("[%)]" + _WIDTH)  # matching the text between "%(" and ")" would take quadratic time
_BACKWARD = frozenset(("rfind", "rindex", "rpartition", "rsplit", "strip", "lstrip", "rstrip"))
_KEYWORDS: Mapping[str, Mapping[str, object]] = {
    "split": {"sep": None, "maxsplit": -1}, "rsplit": {"sep": None, "maxsplit": -1},
    "splitlines": {"keepends": False}, "expandtabs": {"tabsize": 8},
}  # fmt: skip
_COMPARED_PER_WORK = 4_096
_DIGITS = re.compile(r"\d+")


def percent(template: str, arguments: object, meter: RenderBudget, marks: TaintTokens) -> str:
    """`template % arguments`, refused if a width or the result is too large."""
    text = text_of(template)
    meter.weigh(text, arguments)
    aligned = False
    wide = 0
    for match in (_PERCENT_NAMED if "%(" in text else _PERCENT).finditer(text):
        aligned = aligned or any(match.groups())
        for number in filter(None, match.groups()[:2]):
            if number == "*":
                for argument in arguments if isinstance(arguments, tuple) else (arguments,):
                    meter.small(argument)
                    wide += abs(argument) if isinstance(argument, int) else 0
            else:
                wide += meter.small(int(number[:9]))
            meter.will_make(wide)
    meter.will_make(len(text) + text.count("%") * _largest(arguments, meter))
    if isinstance(template, TaintedStr) or (aligned and is_tainted(arguments)):
        made = text % untaint(arguments)
        outside = is_tainted(template) or is_tainted(arguments)
        return marks.mark(made) if outside else str(made)
    return str(text % arguments)


def positional(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Sequence[object]:
    """The arguments of a string's method by position, those that were given by keyword too."""
    if not kwargs:
        return args
    names = _KEYWORDS.get(name, {})
    bound = [*args, *list(names.values())[len(args) :]]
    for key, value in kwargs.items():
        if key not in names or list(names).index(key) < len(args):
            raise TypeError(f"{name}() takes no keyword argument {key!r} here")
        bound[list(names).index(key)] = value
    return bound


def check_method(owner: str, name: str, args: Sequence[object], meter: RenderBudget) -> None:
    """Refuse a method call on `owner` before it makes a string that is too large."""
    if name in _BACKWARD and args and isinstance(args[0], str):
        meter.work(len(owner) * len(args[0]) // _COMPARED_PER_WORK)  # an upper bound of their comparisons
    if name == "replace" and len(args) >= 2:
        old, new = args[0], args[1]
        if isinstance(old, str) and isinstance(new, str):
            found = owner.count(old)
            meter.will_make(len(owner) + found * max(printed_len(new) - len(old), 0))
            if isinstance(owner, TaintedStr) or isinstance(new, TaintedStr):
                meter.small(found)  # each becomes a separate piece
                meter.work(found * len(owner.pieces) >> 3 if isinstance(owner, TaintedStr) else found)
    elif name in ("split", "rsplit", "splitlines"):
        parts = len(getattr(text_of(owner), name)(*untaint(args)))
        meter.hold(PART_BYTES * parts)
        if isinstance(owner, TaintedStr):
            meter.hold(MARKED_BYTES * meter.small(parts))
            meter.work(parts * len(owner.pieces) >> 3)  # each part is looked for among all pieces
    elif name == "join" and args and isinstance(args[0], str | list | tuple | dict):
        meter.will_make(sum(len(part) if isinstance(part, str) else 0 for part in args[0]) + len(owner) * len(args[0]))
    elif name in ("center", "ljust", "rjust", "zfill", "expandtabs") and args:
        width = args[0]
        meter.small(width)
        if name == "expandtabs" and isinstance(width, int):
            meter.will_make(len(owner) + owner.count("\t") * width)


class Format:
    """The `format` or `format_map` method of a string, for a template.

    Args:
        sandbox: Decides what fields like `{0.name}` may reach.
        template: The string.
        name: Name of the method.
    """

    def __init__(self, sandbox: Sandbox, template: str, name: str) -> None:
        self._sandbox = sandbox
        self._template = template
        self._is_map = name == "format_map"

    def __call__(self, *args: Any, **kwargs: object) -> str:
        if self._is_map and (kwargs or len(args) != 1):
            raise TypeError("format_map takes exactly one argument, a mapping")
        return self._made((), args[0]) if self._is_map else self._made(args, kwargs)

    def _made(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        formatter = _Formatter(self._sandbox)
        template = self._template
        if is_tainted(template):
            made = formatter.vformat(text_of(template), untaint(args), untaint(kwargs))
            return self._sandbox.marks.mark(made)
        return formatter.vformat(text_of(template), args, kwargs)


class _Formatter(SandboxedFormatter):
    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox)
        self._meter = sandbox.meter
        self._marks = sandbox.marks
        self._length = 0

    def get_value(self, key: int | str, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        self._meter.work(1)
        return super().get_value(key, args, kwargs)

    def convert_field(self, value: object, conversion: str | None) -> object:
        self._meter.weigh(value)
        self._meter.will_print([value] if conversion in ("r", "a") else value)
        if conversion == "a" and is_tainted(value):
            return self._marks.mark(ascii(untaint(value)))
        return super().convert_field(value, conversion)

    def format_field(self, value: object, format_spec: str) -> object:
        for digits in _DIGITS.findall(text_of(format_spec)):
            self._meter.small(int(digits[:9]))
        self._meter.weigh(value)
        self._meter.will_print(value)
        made = super().format_field(value, str(text_of(format_spec)))
        self._length += len(made)
        self._meter.will_make(self._length)
        return made


def _largest(value: object, meter: RenderBudget) -> int:
    """Roughly how many characters the largest of some arguments prints as."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
    return max((meter.printed_length(part) for part in parts), default=0)
