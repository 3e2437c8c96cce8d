"""`forgather-mem trefs`: shows which templates a template uses."""

from __future__ import annotations

from forgather_mem.cli.options import Searchpath, Settings, Template, environment_of, parse_settings
from forgather_mem.cli.output import print_rows


def trefs(template: Template, settings: Settings = None, searchpath: Searchpath = None) -> None:
    """Show the templates that a template extends, includes and imports, as a tree, with their files.

    When one is missing or has an error, the tree has what was found so far, and the error follows.
    """
    environment, name = environment_of(template, searchpath)
    found, error = environment.references(name, **parse_settings(settings))
    print_rows([("    " * level + name, file) for level, name, file in found], ("bold", "dim"))
    if error is not None:  # reports what is missing
        raise error
