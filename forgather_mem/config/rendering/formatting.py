"""String formatting in templates, with strings from outside among the arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from forgather_mem.config.rendering.taint import TaintTokens, is_tainted, text_of, untaint


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
