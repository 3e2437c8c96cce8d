"""Writes a value of a template as YAML on one line: the filter `toyaml`."""

from __future__ import annotations

from typing import Any

from jinja2.exceptions import TemplateRuntimeError

from forgather_mem.config.rendering.taint import TaintedStr

_MAX_KEPT = 1_000
_MAX_KEPT_CHARS = 100  # longer keys are written with "? "


class YamlWriter:
    """Writes values of plain types in YAML's flow style, with tokens for strings from outside.

    PyYAML's dumper takes a quarter of a millisecond even for a short string, so its output is cached.

    >>> YamlWriter().write({"lr": 1e-4, "tags": ["a", "1"], "seed": None})
    "{lr: 0.0001, seed: null, tags: [a, '1']}"
    """

    def __init__(self) -> None:
        self._alone: dict[str | float, str] = {}
        self._nested: dict[str | float, str] = {}

    def write(self, value: object) -> str:
        """The text of a value.

        Raises:
            TemplateRuntimeError: for a value of another type.
        """
        if isinstance(value, int):
            return str(value)
        if type(value) is str or type(value) is float:
            return self._kept(self._alone, value)
        return self._flow(value)

    def _flow(self, value: Any) -> str:
        kind = type(value)
        if kind is bool or value is None:
            return {True: "true", False: "false", None: "null"}[value]
        if kind is int:
            return str(value)
        if kind is str or kind is float:
            return self._kept(self._nested, value)
        if isinstance(value, TaintedStr):
            text = str(value)
            return text if all(piece[1] for piece in value.pieces) else self._kept(self._nested, text)
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self._flow, value))}]"
        if isinstance(value, dict) and all(isinstance(key, str) and len(key) < _MAX_KEPT_CHARS for key in value):
            return f"{{{', '.join(f'{self._flow(key)}: {self._flow(value[key])}' for key in sorted(value))}}}"
        return self._dumped(value)

    def _kept(self, texts: dict[str | float, str], value: str | float) -> str:
        text = texts.get(value)
        if text is None:
            text = self._dumped(value) if texts is self._alone else self._dumped([value])[1:-1]
            if len(texts) < _MAX_KEPT and len(text) < _MAX_KEPT_CHARS:
                texts[value] = text
        return text

    def _dumped(self, value: object) -> str:
        import yaml  # when it is needed: a process that renders has little time to start

        class Flow(yaml.SafeDumper):
            """Writes shared lists out each time: an anchor could clash with another in the template."""

            def ignore_aliases(self, data: object) -> bool:
                return True

        try:
            text: str = yaml.dump(
                _plain(value), Dumper=Flow, default_flow_style=True, allow_unicode=True, width=float("inf")
            )
        except yaml.YAMLError as error:
            raise TemplateRuntimeError(f"toyaml can't write this value: {str(error).splitlines()[0]}") from error
        return text.strip().removesuffix("...").removesuffix("\n")


def _plain(value: object) -> object:
    if isinstance(value, TaintedStr):
        return str(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
