"""`forgather-mem ls`: lists the templates that can be loaded here."""

from __future__ import annotations

from pathlib import Path

from forgather_mem.cli.options import add_searchpath, check_folders
from forgather_mem.cli.output import print_rows, print_text
from forgather_mem.cli.parser import CommandParser


def add_arguments(parser: CommandParser) -> None:
    add_searchpath(parser)
    parser.add_argument("--path", action="store_true", help="Print the library's own folder, for other search paths.")


def ls(searchpath: list[Path], path: bool) -> None:
    """List templates, each with its first comment line."""
    from forgather_mem.config.source.search import Searcher, library

    if path:
        print_text(str(library()))
        return
    check_folders(searchpath)
    print_rows([*Searcher([*searchpath, "."]).names().items()])
