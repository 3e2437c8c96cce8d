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
    from forgather_mem.config.graph.encode import built_of, tree
    from forgather_mem.config.graph.nodes import items_of

    environment, name = environment_of(template, searchpath)
    config = environment.load(name, **parse_settings(settings))
    rows = []
    for branch in tree(config.graph, outermost=True):
        place = config.graph.place(branch.mark) if branch.mark else None
        is_list = branch.label in config.targets and items_of(config.graph.target(branch.label)) is not None
        inside = f": {built_of(config.graph.target(branch.label))}" if is_list else ""
        rows.append((branch.label, branch.text + inside, f"{place.template}:{place.line}" if place else ""))
    print_rows(rows, ("bold", "", "dim"))
