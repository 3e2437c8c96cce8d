"""`forgather-mem allow`: opens the names that a template needs, in the current folder."""

from __future__ import annotations

from pathlib import Path

import typer

from forgather_mem.cli.app import FAILURE
from forgather_mem.cli.options import Searchpath, Settings, Template, environment_of, parse_settings, policy_of
from forgather_mem.cli.output import first_names, print_rows
from forgather_mem.errors import ForgatherMemError


def allow(
    template: Template,
    settings: Settings = None,
    searchpath: Searchpath = None,
    yes: bool = typer.Option(False, "--yes", "-y", help="Don't ask."),
) -> None:
    """Show which names of a template are refused, ask, and allow them in the current folder's pyproject.toml.

    Whatever a template names with an allowed name it may run: allow what you wrote or trust.
    """
    from forgather_mem.config.check import refused
    from forgather_mem.config.policy.allow_entries import add_entries
    from forgather_mem.config.policy.denied import NOT_LISTED

    environment, name = environment_of(template, searchpath, policy_of())
    config = environment.load(name, **parse_settings(settings))
    found = refused(environment, config)
    if not found:
        print(f"{name}: the policy refuses none of its names")
        return
    rows = [("name", "used at", "entry")]
    for problem in found:
        error = problem.error
        place = f"{error.template}:{error.line}:{error.column}"
        entry = ", ".join(problem.entries) or "can't be allowed"
        why = error.message.removeprefix(f"{problem.names[0]!r} ").rpartition(";")[0]
        rows += [(problem.names[0], place, entry if why == NOT_LISTED else f"{entry}   ({why})")]
    print_rows(rows, ("bold", "dim", ""))
    entries = list(dict.fromkeys(entry for problem in found for entry in problem.entries))
    if not entries:
        raise typer.Exit(FAILURE)
    file = Path.cwd() / "pyproject.toml"
    if not yes and not typer.confirm(f"Allow {first_names(entries)} for everything that is run in {Path.cwd()}?"):
        print("nothing was written")
        raise typer.Exit(FAILURE)
    try:
        add_entries(Path.cwd(), entries)
    except (ValueError, OSError) as error:
        raise ForgatherMemError(str(error)) from error
    print(f"written to [tool.forgather_mem] allow in {file}")
