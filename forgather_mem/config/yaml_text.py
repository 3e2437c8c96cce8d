"""How does a value of a template look as YAML on one line? The filter `toyaml`."""

from __future__ import annotations

from typing import Any

import yaml

from forgather_mem.config.marked import Marked

_MAX_KEPT = 1_000
_MAX_KEPT_CHARS = 100  # longer keys are written with "? "


class _Flow(yaml.SafeDumper):
    """Writes shared lists out each time: an anchor would clash with another one in the template."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class YamlWriter:
    """Writes values of plain types in YAML's flow style, tokens for strings from outside.

    PyYAML's dumper takes a quarter of a millisecond even for a short string, so what it wrote is kept.

    >>> YamlWriter().write({"lr": 1e-4, "tags": ["a", "1"], "seed": None})
    "{lr: 0.0001, seed: null, tags: [a, '1']}"
    """

    def __init__(self) -> None:
        self._alone: dict[str | float, str] = {}
        self._nested: dict[str | float, str] = {}

    def write(self, value: Any) -> str:
        """The text of a value.

        Raises:
            yaml.YAMLError: for a value of another type.
        """
        if isinstance(value, int):
            return str(value)
        if type(value) in (str, float):
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
        if isinstance(value, Marked):
            text = str(value)
            return text if all(piece[1] for piece in value.pieces) else self._kept(self._nested, text)
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self._flow, value))}]"
        if isinstance(value, dict) and all(isinstance(key, str) and len(key) < _MAX_KEPT_CHARS for key in value):
            return f"{{{', '.join(f'{self._flow(key)}: {self._flow(value[key])}' for key in sorted(value))}}}"
        return _dumped(value)

    def _kept(self, texts: dict[str | float, str], value: Any) -> str:
        text = texts.get(value)
        if text is None:
            text = _dumped(value) if texts is self._alone else _dumped([value])[1:-1]
            if len(texts) < _MAX_KEPT and len(text) < _MAX_KEPT_CHARS:
                texts[value] = text
        return text


def _dumped(value: Any) -> str:
    text: str = yaml.dump(_plain(value), Dumper=_Flow, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return text.strip().removesuffix("...").removesuffix("\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Marked):
        return str(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
