"""`forgather-mem graph`: shows what a template means, without building it."""

from __future__ import annotations

from enum import StrEnum

import typer

from forgather_mem.cli.options import Searchpath, Settings, Template, environment_of, parse_settings
from forgather_mem.cli.output import print_rows, print_yaml
from forgather_mem.errors import TemplateError, did_you_mean


class Form(StrEnum):
    """Output formats of a graph."""

    tree = "tree"
    yaml = "yaml"


def graph(
    template: Template,
    settings: Settings = None,
    searchpath: Searchpath = None,
    form: Form = typer.Option(Form.tree, "--format", help="A tree for people, or YAML that loads again."),
    target: list[str] | None = typer.Option(None, "--target", "-t", help="Only this target. Repeatable."),
) -> None:
    """Show what a template means: its calls, values and variables."""
    from forgather_mem.config.graph.encode import encode, tree

    environment, name = environment_of(template, searchpath)
    config = environment.load(name, **parse_settings(settings))
    for wanted in target or ():
        if wanted not in config.targets:
            hint = did_you_mean(wanted, config.targets) or f"the targets are {', '.join(config.targets)}"
            raise TemplateError(f"there is no target {wanted!r}", template=name, hint=hint)
    if form is Form.yaml:
        print_yaml(encode(config.graph, target or None))
        return
    rows = []
    for branch in tree(config.graph, target or None):
        note = f"   ({branch.note})" if branch.note else ""
        rows.append((f"{'    ' * branch.depth}{branch.label}: {branch.text}{note}",))
    print_rows(rows)
