"""`forgather-mem graph`: shows what a template means, without building it."""

from __future__ import annotations

from pathlib import Path

from forgather_mem.cli.options import add_template_arguments, environment_of, parse_settings
from forgather_mem.cli.output import print_rows
from forgather_mem.cli.parser import CommandParser
from forgather_mem.errors import TemplateError, did_you_mean


def add_arguments(parser: CommandParser) -> None:
    add_template_arguments(parser)
    parser.add_argument(
        "-t", "--target", dest="targets", metavar="NAME", action="append", default=[],
        help="Only this target. Repeatable.",
    )  # fmt: skip


def graph(template: str, settings: list[str], searchpath: list[Path], targets: list[str]) -> None:
    """Show what a template means: its calls, values and variables."""
    from forgather_mem.config.graph.nodes import tree

    environment, name = environment_of(template, searchpath)
    config = environment.load(name, **parse_settings(settings))
    for wanted in targets:
        if wanted not in config.targets:
            hint = did_you_mean(wanted, config.targets) or f"the targets are {', '.join(config.targets)}"
            raise TemplateError(f"there is no target {wanted!r}", template=name, hint=hint)
    rows = []
    for depth, label, text, note in tree(config.graph, targets or None):
        rows.append((f"{'    ' * depth}{label}: {text}{f'   ({note})' if note else ''}",))
    print_rows(rows)
