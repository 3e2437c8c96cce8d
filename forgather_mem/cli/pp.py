"""What does `forgather-mem pp` do? It shows the text that a template renders to."""

from __future__ import annotations

import typer

from forgather_mem.cli.options import Searchpath, Settings, Template, environment_of, variables_of
from forgather_mem.cli.output import print_rows, print_yaml


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to the application."""
    app.command("pp", rich_help_panel=panel)(pp)


def pp(
    template: Template,
    settings: Settings = None,
    searchpath: Searchpath = None,
    debug: bool = typer.Option(False, "--debug", help="Show which line of which file each line comes from."),
) -> None:
    """Show the text that a template renders to (also called `render`)."""
    environment, name = environment_of(template, searchpath)
    rendered = environment.render(name, **variables_of(settings))
    if not debug:
        print_yaml(rendered.shown)
        return
    rows = []
    for number, line in enumerate(rendered.text.removesuffix("\n").split("\n"), 1):
        place = rendered.place(number)
        first, *more = rendered.put_back(line).split("\n")  # a value from outside may have several lines
        rows.append((f"{place.template}:{place.line}", f"| {first}"))
        rows += [("", f"| {text}") for text in more]
    print_rows(rows, ("dim",))
