"""String formatting in templates, with strings from outside among the arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2.sandbox import SandboxedFormatter

from forgather_mem.config.rendering.taint import TaintedStr, is_tainted, text_of, untaint
from forgather_mem.config.rendering.taint_tokens import TaintTokens

if TYPE_CHECKING:
    from forgather_mem.config.rendering.sandbox import Sandbox

_CHANGES_TEXT = re.compile(r"[%)](?:[#0\- +]*[\d*.]|[#0\- +]*a)")
"""A width, a precision or an escape: it would count or change the characters of a token."""


def percent(template: str, arguments: object, marks: TaintTokens) -> str:
    """`template % arguments`."""
    text = text_of(template)
    if isinstance(template, TaintedStr) or (is_tainted(arguments) and _CHANGES_TEXT.search(text)):
        made = text % untaint(arguments)
        return marks.mark(made) if is_tainted(template) or is_tainted(arguments) else str(made)
    return str(text % arguments)


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
        self._marks = sandbox.marks

    def convert_field(self, value: object, conversion: str | None) -> object:
        if conversion == "a" and is_tainted(value):
            return self._marks.mark(ascii(untaint(value)))
        return super().convert_field(value, conversion)

    def format_field(self, value: object, format_spec: str) -> object:
        return super().format_field(value, str(text_of(format_spec)))
