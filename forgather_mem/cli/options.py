"""The options shared by the template commands, and how they are parsed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forgather_mem.cli.parser import CommandParser
from forgather_mem.errors import TemplateError, UsageError

if TYPE_CHECKING:
    from forgather_mem.config.environment import ConfigEnvironment
    from forgather_mem.config.policy.policy import Policy


def add_template_arguments(parser: CommandParser) -> None:
    """TEMPLATE, `--set` and `--searchpath`: for `environment_of` and `parse_settings`."""
    parser.add_argument("template", metavar="TEMPLATE", help="A name such as callbacks/memory.yaml, or a file.")
    add_settings(parser)
    add_searchpath(parser)


def add_settings(parser: CommandParser) -> None:
    parser.add_argument(
        "--set", dest="settings", metavar="KEY=VALUE", action="append", default=[],
        help="Set a variable: a dotted key and one YAML value. Repeatable.",
    )  # fmt: skip


def add_searchpath(parser: CommandParser) -> None:
    parser.add_argument(
        "-p", "--searchpath", metavar="DIR", action="append", type=_folder, default=[],
        help="Search this folder first. Repeatable.",
    )  # fmt: skip


def _folder(word: str) -> Path:
    if not os.path.isdir(word):
        raise argparse.ArgumentTypeError(f"{word!r}: there is no such folder")
    return Path(word)


def add_allow(parser: CommandParser) -> None:
    parser.add_argument(
        "--allow", metavar="NAME", action="append", default=[],
        help="What templates may use: a module, one module:name, an address. Repeatable.",
    )  # fmt: skip


def add_folder(parser: CommandParser, text: str) -> None:
    """The argument `folder`, by default the current one."""
    text = f"{text} Default: the current folder."
    parser.add_argument("folder", nargs="?", metavar="[DIR]", type=Path, default=Path("."), help=text)


def environment_of(
    template: str, searchpath: Sequence[Path] = (), policy: Policy | None = None
) -> tuple[ConfigEnvironment, str]:
    """The search path of a command, and the name of the requested template.

    The given folders come first, then the current one, then the library. A template may also be given as the path of
    any file: then its folder comes first. Without `policy` the default is used: for commands that import nothing.
    """
    from forgather_mem.config.environment import ConfigEnvironment
    from forgather_mem.config.policy.policy import Policy

    folders = list(searchpath)
    file = Path(template).expanduser()
    if (file.is_absolute() or ".." in file.parts) and file.is_file():
        folders, template = [file.parent, *folders], file.name
    return ConfigEnvironment([*folders, "."], policy=policy or Policy()), template


def policy_of(allow: Sequence[str] = (), allow_files: Sequence[Path] = (), unsafe_any: bool = False) -> Policy:
    """The policy of a command: its options, `FORGATHER_MEM_ALLOW`, and the current folder's pyproject.toml.

    Opened names include modules of the current folder. An installed command does not search it, so it is appended to
    the module search path, but only if the user opened something.

    Raises:
        UsageError: for an entry that is not a name, and a file that does not exist.
    """
    from forgather_mem.config.policy.policy import Policy

    for file in allow_files:
        if not file.expanduser().exists():
            raise UsageError(f"--allow-file: there is no file {str(file)!r}")
    try:
        policy = Policy.UNSAFE_ANY if unsafe_any else Policy.of_person(allow, allow_files)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if policy.opens_modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return policy


def parse_settings(settings: Sequence[str]) -> dict[str, object]:
    """Variables from `--set key=value`: keys may be dotted, a value is one YAML scalar, list or mapping.

    >>> parse_settings(["lr=1e-4", "run.name=first", "run.tags=[a, b]"])
    {'lr': 0.0001, 'run': {'name': 'first', 'tags': ['a', 'b']}}

    Raises:
        UsageError: for a setting in any other form.
    """
    variables: dict[str, object] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        *outer, last = parts = key.strip().split(".")
        if not equals or not all(part.isidentifier() for part in parts):
            raise _bad(setting, "must be KEY=VALUE, for example lr=1e-4")
        inside = variables
        for part in outer:
            found = inside.setdefault(part, {})
            if not isinstance(found, dict):
                raise _bad(setting, f"sets a part of {part!r}, which another setting makes a plain value")
            inside = found
        inside[last] = _value(setting, text)
    return variables


def _value(setting: str, text: str) -> object:
    from forgather_mem.config.construction.construct import unbuilt
    from forgather_mem.config.graph.nodes import walk_nodes
    from forgather_mem.config.graph.parse import parse
    from forgather_mem.config.source.rendered import Rendered

    try:
        root = parse(Rendered.as_is(text, "--set")).root
        if any(getattr(node, "form", "call") for node in walk_nodes([root])):
            raise TemplateError("tags mean nothing here")
        return unbuilt(root, {})
    except TemplateError as error:
        raise _bad(
            setting, f"has a value that is not plain YAML ({error.message}); quote text, for example 'a=\"b: c\"'"
        ) from error


def _bad(setting: str, why: str) -> UsageError:
    return UsageError(f"--set {setting!r} {why}")
