"""What does `--set key=value` mean? A variable for a template: a dotted key, and one YAML value of plain types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

_OPTION = "'--set'"


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """The variables that `--set` options give; `a.b=1` is `{"a": {"b": 1}}`, and a later option wins.

    >>> parse_settings(["steps=30", "lr=1e-4", "ns.names=[a, 'b c']", "ns.on=true", "title=plain text"])
    {'steps': 30, 'lr': 0.0001, 'ns': {'names': ['a', 'b c'], 'on': True}, 'title': 'plain text'}

    Raises:
        typer.BadParameter: for text that is no `key=value`, or a value that is not plain YAML.
    """
    variables: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        names = key.strip().split(".")
        if not equals or not all(name.isidentifier() for name in names):
            raise typer.BadParameter(f"{setting[:100]!r}: write key=value, for example steps=100", param_hint=_OPTION)
        inner = variables
        for name in names[:-1]:
            found = inner.setdefault(name, {})
            if not isinstance(found, dict):
                found = inner[name] = {}
            inner = found
        inner[names[-1]] = _value(setting, text)
    return variables


def _value(setting: str, text: str) -> Any:
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if node is None else _plain(node)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        problem = getattr(error, "problem", None) or str(error)
        raise typer.BadParameter(
            f"{setting[:100]!r}: {problem}; the value is one YAML value such as 0.1, true, null, text or [1, 2]; "
            "quote text with special characters: key='\"...\"'",
            param_hint=_OPTION,
        ) from error


def _plain(node: Any) -> Any:
    import yaml

    from forgather_mem.config import scalars

    if not node.tag.startswith(scalars.STANDARD):
        raise ValueError(f"the tag {node.tag} is for templates")
    if isinstance(node, yaml.ScalarNode):
        return scalars.resolve(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    return {_plain(key): _plain(value) for key, value in node.value}
