"""How does a value of a template look as YAML on one line? The filter `toyaml`."""

from __future__ import annotations

from typing import Any

import yaml

from forgather_mem.config.marked import Marked


class _Flow(yaml.SafeDumper):
    """Writes shared lists out each time: an anchor would clash with another one in the template."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(value: Any) -> str:
    """A value of plain types in YAML's flow style, tokens for strings from outside.

    >>> to_yaml({"lr": 1e-4, "tags": ["a", "1"], "seed": None})
    "{lr: 0.0001, seed: null, tags: [a, '1']}"

    Raises:
        yaml.YAMLError: for a value of another type.
    """
    if isinstance(value, int):
        return str(value)
    if value is None:
        return "null"
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
