"""`forgather-mem ls`: lists the templates that can be loaded here."""

from __future__ import annotations

import typer

from forgather_mem.cli.options import Searchpath
from forgather_mem.cli.output import print_rows


def ls(
    searchpath: Searchpath = None,
    path: bool = typer.Option(False, "--path", help="Print the library's own folder, for other search paths."),
) -> None:
    """List templates, each with its first comment line."""
    from forgather_mem.config.source.search import Searcher, library

    if path:
        print(library())
        return
    for folder in searchpath or ():
        if not folder.is_dir():
            raise typer.BadParameter(f"there is no folder {str(folder)!r}", param_hint="--searchpath")
    found = Searcher([*(searchpath or ()), "."]).names()
    print_rows([(template.name, template.comment) for template in found], ("bold", "dim"))
