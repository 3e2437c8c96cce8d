"""`forgather-mem targets`: lists what a template can build."""

from __future__ import annotations

from pathlib import Path

from forgather_mem.cli.options import add_template_arguments, environment_of, parse_settings
from forgather_mem.cli.output import print_rows
from forgather_mem.cli.parser import CommandParser


def add_arguments(parser: CommandParser) -> None:
    add_template_arguments(parser)


def targets(template: str, settings: list[str], searchpath: list[Path]) -> None:
    """List the targets of a template: name, what it is, where it stands."""
    from forgather_mem.config.graph.encode import tree

    environment, name = environment_of(template, searchpath)
    config = environment.load(name, **parse_settings(settings))
    rows = []
    for branch in tree(config.graph, outermost=True):
        place = config.graph.place(branch.mark) if branch.mark else None
        rows.append((branch.label, branch.text, f"{place.template}:{place.line}" if place else ""))
    print_rows(rows, ("bold", "", "dim"))
