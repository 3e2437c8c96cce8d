"""Writes a value of a template as YAML on one line: the filter `toyaml`."""

from __future__ import annotations

import functools

from jinja2.exceptions import TemplateRuntimeError

from forgather_mem.config.rendering.taint import TaintedStr

_SHORT = 100  # characters; longer keys are written with "? "


def write(value: object) -> str:
    """A value of plain types in YAML's flow style, with tokens for strings from outside.

    >>> write({"lr": 1e-4, "tags": ["a", "1"], "seed": None})
    "{lr: 0.0001, seed: null, tags: [a, '1']}"

    Raises:
        TemplateRuntimeError: for a value of another type.
    """
    if isinstance(value, int):
        return str(value)
    return _scalar(value, nested=False) if type(value) in (str, float) else _flow(value)


def _flow(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    if type(value) is int:
        return str(value)
    if isinstance(value, TaintedStr) and all(piece[1] for piece in value.pieces):
        return str(value)
    if isinstance(value, str) or type(value) is float:
        return _scalar(str(value) if isinstance(value, str) else value, nested=True)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, dict) and all(isinstance(key, str) and len(key) < _SHORT for key in value):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(value[key])}' for key in sorted(value))}}}"
    return _dumped(value)


def _scalar(value: object, *, nested: bool) -> str:
    return (_short if len(str(value)) < _SHORT else _short.__wrapped__)(value, nested)


@functools.lru_cache(maxsize=1_000, typed=True)  # PyYAML's dumper takes a quarter of a ms even for a short string
def _short(value: object, nested: bool) -> str:
    return _dumped([value])[1:-1] if nested else _dumped(value)


def _dumped(value: object) -> str:
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
