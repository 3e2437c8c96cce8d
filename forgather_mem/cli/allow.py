"""`forgather-mem allow`: opens the names that a template needs, in the current folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

from forgather_mem.cli.command import FAILURE
from forgather_mem.cli.options import add_template_arguments, environment_of, parse_settings, policy_of
from forgather_mem.cli.output import print_rows, print_text
from forgather_mem.cli.parser import CommandParser
from forgather_mem.errors import ForgatherMemError, shown


def add_arguments(parser: CommandParser) -> None:
    add_template_arguments(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="Don't ask.")


def allow(template: str, settings: list[str], searchpath: list[Path], yes: bool) -> int:
    """Show which names of a template are refused, ask, and allow them in the current folder's pyproject.toml.

    Whatever a template names with an allowed name it may run: allow what you wrote or trust.
    """
    from forgather_mem.config.check import refused
    from forgather_mem.config.policy.allow_entries import add_entries
    from forgather_mem.config.policy.denied import NOT_LISTED

    environment, name = environment_of(template, searchpath, policy_of())
    if not (found := refused(environment.load(name, **parse_settings(settings)))):
        print_text(f"{name}: the policy refuses none of its names")
        return 0
    rows = [("name", "used at", "entry")]
    for error in found:
        place = f"{error.template}:{error.line}:{error.column}"
        entry = ", ".join(error.entries) or "can't be allowed"
        why = error.message.removeprefix(f"{error.names[0]!r} ").rpartition(";")[0]
        rows += [(error.names[0], place, entry if why == NOT_LISTED else f"{entry}   ({why})")]
    print_rows(rows)
    entries = list(dict.fromkeys(entry for error in found for entry in error.entries))
    question = f"Allow {', '.join(entries)} for everything that is run in {Path.cwd()}?"
    if not entries or not (yes or _confirmed(question)):
        return FAILURE
    try:
        add_entries(Path.cwd(), entries)
    except (ValueError, OSError) as error:
        raise ForgatherMemError(str(error)) from error
    print_text(f"written to [tool.forgather_mem] allow in {Path.cwd() / 'pyproject.toml'}")
    return 0


def _confirmed(question: str) -> bool:
    """Ask on the terminal; only "y" and "yes" mean yes."""
    answer = ""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        answer = input(shown(f"{question} [y/N]: "))
    if answer.strip().lower() in ("y", "yes"):
        return True
    print("nothing was written")
    return False
