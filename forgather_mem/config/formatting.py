"""How are strings formatted and changed in a template, without a width or count that fills the memory?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2.sandbox import SandboxedFormatter

from forgather_mem.config.marked import Marked, is_outside, real, unmarked
from forgather_mem.config.marks import Marks
from forgather_mem.config.meter import Meter, printed_len

if TYPE_CHECKING:
    from forgather_mem.config.sandbox import Sandbox

_WIDTH = r"[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?(a?)"
_PERCENT = re.compile("%" + _WIDTH)
_PERCENT_NAMED = re.compile("[%)]" + _WIDTH)  # what stands between "%(" and ")" would take quadratic time to match
_BACKWARD = frozenset(("rfind", "rindex", "rpartition", "rsplit", "strip", "lstrip", "rstrip"))
_COMPARED_PER_WORK = 4_096
_DIGITS = re.compile(r"\d+")


def percent(template: str, arguments: Any, meter: Meter, marks: Marks) -> str:
    """`template % arguments`, refused when a width, or what it would make, is too large."""
    text = real(template)
    meter.weigh(text, arguments)
    aligned = False
    for match in (_PERCENT_NAMED if "%(" in text else _PERCENT).finditer(text):
        aligned = aligned or any(match.groups())
        for number in filter(None, match.groups()[:2]):
            if number == "*":
                for argument in arguments if isinstance(arguments, tuple) else (arguments,):
                    meter.small(argument)
            else:
                meter.small(int(number[:9]))
    meter.will_make(len(text) + text.count("%") * _largest(arguments))
    if isinstance(template, Marked) or (aligned and is_outside(arguments)):
        made = text % unmarked(arguments)
        outside = is_outside(template) or is_outside(arguments)
        return marks.mark(made) if outside else str(made)
    return str(text % arguments)


def check_method(owner: str, name: str, args: Sequence[Any], meter: Meter) -> None:
    """Refuses a call of a method of `owner` before it makes a string that is too large."""
    if name == "replace" and len(args) >= 2:
        old, new = args[0], args[1]
        if isinstance(old, str) and isinstance(new, str):
            found = owner.count(old)
            meter.will_make(len(owner) + found * max(printed_len(new) - len(old), 0))
            if isinstance(owner, Marked) or isinstance(new, Marked):
                meter.small(found)  # each becomes a piece of its own
    elif name in ("split", "rsplit", "splitlines") and isinstance(owner, Marked):
        meter.small(len(getattr(owner.real, name)(*unmarked(args))))
    elif name in _BACKWARD and args and isinstance(args[0], str):
        meter.work(len(owner) * len(args[0]) // _COMPARED_PER_WORK)  # what these may compare
    elif name == "join" and args and isinstance(args[0], str | list | tuple | dict):
        meter.will_make(sum(len(part) if isinstance(part, str) else 0 for part in args[0]) + len(owner) * len(args[0]))
    elif name in ("center", "ljust", "rjust", "zfill", "expandtabs") and args:
        meter.small(args[0])
        if name == "expandtabs" and isinstance(args[0], int):
            meter.will_make(len(owner) + owner.count("\t") * args[0])


class Format:
    """The method `format` or `format_map` of a string, for a template.

    Args:
        sandbox: Says what fields like `{0.name}` may reach.
        template: The string.
        name: Name of the method.
    """

    def __init__(self, sandbox: Sandbox, template: str, name: str) -> None:
        self._sandbox = sandbox
        self._template = template
        self._is_map = name == "format_map"

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        if self._is_map and (kwargs or len(args) != 1):
            raise TypeError("format_map takes exactly one argument, a mapping")
        return self._made((), args[0]) if self._is_map else self._made(args, kwargs)

    def _made(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        formatter = _Formatter(self._sandbox)
        template = self._template
        if is_outside(template):
            made = formatter.vformat(real(template), unmarked(args), unmarked(kwargs))
            return self._sandbox.marks.mark(made)
        return formatter.vformat(real(template), args, kwargs)


class _Formatter(SandboxedFormatter):
    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox)
        self._meter = sandbox.meter
        self._marks = sandbox.marks
        self._length = 0

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._meter.work(1)
        return super().get_value(key, args, kwargs)

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion == "a" and is_outside(value):
            return self._marks.mark(ascii(unmarked(value)))
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        for digits in _DIGITS.findall(real(format_spec)):
            self._meter.small(int(digits[:9]))
        self._meter.weigh(value)
        made = super().format_field(value, str(real(format_spec)))
        self._length += len(made)
        self._meter.will_make(self._length)
        return made


def _largest(value: Any) -> int:
    """About how many characters the largest of some arguments prints as."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return max((_printed(item) for item in value.values()), default=0)
    return max((_printed(item) for item in value), default=0) if isinstance(value, tuple) else _printed(value)


def _printed(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_printed(key) + _printed(item) + 4 for key, item in value.items())
    return sum(_printed(item) + 4 for item in value) if isinstance(value, list | tuple) else 32
