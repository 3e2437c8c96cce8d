"""`forgather-mem pp`: shows the text that a template renders to."""

from __future__ import annotations

from pathlib import Path

from forgather_mem.cli.options import add_template_arguments, environment_of, parse_settings
from forgather_mem.cli.output import print_rows, print_text
from forgather_mem.cli.parser import CommandParser


def add_arguments(parser: CommandParser) -> None:
    add_template_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="Show which line of which file each line comes from.")


def pp(template: str, settings: list[str], searchpath: list[Path], debug: bool) -> None:
    """Show the text that a template renders to (also called `render`)."""
    environment, name = environment_of(template, searchpath)
    rendered = environment.render(name, **parse_settings(settings))
    if not debug:
        print_text(rendered.shown.removesuffix("\n"))
        return
    rows = []
    for number, line in enumerate(rendered.text.removesuffix("\n").split("\n"), 1):
        place = rendered.place(number)
        first, *more = rendered.put_back(line).split("\n")  # a value from outside may have several lines
        rows.append((f"{place.template}:{place.line}", f"| {first}"))
        rows += [("", f"| {text}") for text in more]
    print_rows(rows)
