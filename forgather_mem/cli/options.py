"""Which options do the template commands share, and how are they read?"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from forgather_mem.errors import TemplateError

if TYPE_CHECKING:
    from forgather_mem.config.environment import ConfigEnvironment
    from forgather_mem.config.nodes import Value
    from forgather_mem.config.policy import Policy

Template: TypeAlias = Annotated[
    str, typer.Argument(metavar="TEMPLATE", show_default=False, help="A name, as callbacks/memory.yaml, or a file.")
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A variable: a dotted key and one YAML value. Repeatable."),
]
Searchpath: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--searchpath", "-p", metavar="DIR", help="Look in this folder first. Repeatable."),
]
Allow: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="NAME", help="A module that templates may use, or one module:name. Repeatable."),
]
AllowFile: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--allow-file", metavar="FILE", help="A Python file that templates may use. Repeatable."),
]
UnsafeAny: TypeAlias = Annotated[
    bool, typer.Option("--unsafe-any", help="Allow everything. For templates that you would run as Python.")
]


def environment_of(
    template: str, searchpath: Sequence[Path] | None, policy: Policy | None = None
) -> tuple[ConfigEnvironment, str]:
    """Where a command looks for templates, and the name of the one it was asked for.

    The given folders come first, then the current one, then the library. A template may also be given as a file
    anywhere: then its folder comes first. Without a policy it is the default: for commands that import nothing.

    Raises:
        typer.BadParameter: for a folder that does not exist.
    """
    from forgather_mem.config.environment import ConfigEnvironment
    from forgather_mem.config.policy import Policy

    folders = list(searchpath or ())
    for folder in folders:
        if not folder.is_dir():
            raise typer.BadParameter(f"there is no folder {str(folder)!r}", param_hint="--searchpath")
    file = Path(template).expanduser()
    if (file.is_absolute() or ".." in file.parts) and file.is_file():
        folders, template = [file.parent, *folders], file.name
    return ConfigEnvironment([*folders, "."], policy=policy or Policy()), template


def policy_of(
    allow: Sequence[str] | None = None, allow_files: Sequence[Path] | None = None, unsafe_any: bool = False
) -> Policy:
    """The policy of a command: its options, `FORGATHER_MEM_ALLOW`, and the current folder's pyproject.toml.

    Who opens a name means modules of the current folder too. An installed command does not look there, so the
    folder joins the end of the search for modules, when a person opened something and not otherwise.

    Raises:
        typer.BadParameter: for an entry that is no name, and a file that is not there.
    """
    from forgather_mem.config.policy import Policy

    for file in allow_files or ():
        if not file.expanduser().exists():
            raise typer.BadParameter(f"there is no file {str(file)!r}", param_hint="--allow-file")
    if unsafe_any:
        policy = Policy.UNSAFE_ANY
    else:
        try:
            policy = Policy.of_person(allow or (), allow_files or ())
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    if policy.opens_modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return policy


def variables_of(settings: Sequence[str] | None) -> dict[str, Any]:
    """Variables from `--set key=value`: keys may be dotted, a value is one YAML scalar, list or mapping.

    >>> variables_of(["lr=1e-4", "run.name=first", "run.tags=[a, b]"])
    {'lr': 0.0001, 'run': {'name': 'first', 'tags': ['a', 'b']}}

    Raises:
        typer.BadParameter: for a setting that is not of this form.
    """
    variables: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        *outer, last = parts = key.strip().split(".")
        if not equals or not all(part.isidentifier() for part in parts):
            raise _bad(setting, "is not of the form KEY=VALUE, as lr=1e-4 is")
        inside = variables
        for part in outer:
            inside = inside.setdefault(part, {})
            if not isinstance(inside, dict):
                raise _bad(setting, f"asks for a part of {part!r}, which another setting made a plain value")
        inside[last] = _value(setting, text)
    return variables


def _value(setting: str, text: str) -> Any:
    from forgather_mem.config.parse import parse
    from forgather_mem.config.rendered import Rendered

    try:
        return _plain(parse(Rendered.as_is(text, "--set")).root)
    except TemplateError as error:
        raise _bad(
            setting, f"has a value that is no plain YAML ({error.message}); quote text, as in 'a=\"b: c\"'"
        ) from error


def _plain(value: Value) -> Any:
    from forgather_mem.config.nodes import DictNode, ListNode, Node

    if isinstance(value, ListNode) and value.form == "":
        return [_plain(item) for item in value.items]
    if isinstance(value, DictNode) and value.form == "":
        return {key: _plain(item) for key, item in value.entries.items()}
    if isinstance(value, Node):
        raise TemplateError("tags mean nothing here")
    return value


def _bad(setting: str, why: str) -> typer.BadParameter:
    return typer.BadParameter(f"{setting!r} {why}", param_hint="--set")
