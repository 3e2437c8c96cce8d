"""`forgather-mem trefs`: shows which templates a template uses."""

from __future__ import annotations

from pathlib import Path

from forgather_mem.cli.options import add_template_arguments, environment_of, parse_settings
from forgather_mem.cli.output import print_rows

add_arguments = add_template_arguments


def trefs(template: str, settings: list[str], searchpath: list[Path]) -> None:
    """Show the templates that a template extends, includes and imports, as a tree, with their files.

    When one is missing or has an error, the tree has what was found so far, and the error follows.
    """
    environment, name = environment_of(template, searchpath)
    found, error = environment.references(name, **parse_settings(settings))
    print_rows([("    " * level + name, file) for level, name, file in found])
    if error is not None:  # reports what is missing
        raise error
