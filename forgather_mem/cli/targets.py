"""`forgather-mem targets`: lists what a template can build."""

from __future__ import annotations

from pathlib import Path

from forgather_mem.cli.options import add_template_arguments, environment_of, parse_settings
from forgather_mem.cli.output import print_rows

add_arguments = add_template_arguments


def targets(template: str, settings: list[str], searchpath: list[Path]) -> None:
    """List the targets of a template: name, what it is, where it stands."""
    from forgather_mem.config.graph.nodes import built_of, in_a_line, items_of, shortened_text

    environment, name = environment_of(template, searchpath)
    graph = environment.load(name, **parse_settings(settings)).graph
    rows = []
    for target in graph.targets:
        value, place = graph.target(target), graph.place_of(target)
        text = in_a_line(value) if items_of(value) is None else built_of(value)
        rows.append((shortened_text(target), text, f"{place.template}:{place.line}"))
    print_rows(rows)
