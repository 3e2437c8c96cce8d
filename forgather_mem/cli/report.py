"""What does `forgather-mem report` do? It shows what a run left: as text, as JSON, as a page."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import typer

from forgather_mem.cli.app import FAILURE, complain

_FILES_OF_A_RUN = ("report.", "memory.rank", "ring.rank", "events.out.", "events.mem.")


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to the application."""
    app.command("report", rich_help_panel=panel)(report)


def report(
    folder: Path = typer.Argument(
        Path("."),
        metavar="DIR",
        show_default=False,
        help="A run's folder, or one above it: then the newest run. Also a TensorBoard folder with tags mem_*. "
        "Default: the current folder.",
    ),
    as_json: bool = typer.Option(False, "--json", help="All numbers, as JSON (schema 1)."),
    html: Path | None = typer.Option(None, "--html", metavar="FILE", help="Write a page with curves to this file."),
) -> None:
    """Show what a run left: where the memory was highest, what grew, what was collected and cleared."""
    from forgather_mem.report_text import report_text
    from forgather_mem.run_folder import find_run, read_run

    if folder.is_file() and folder.name.startswith(_FILES_OF_A_RUN):
        folder = folder.parent
    place = find_run(folder)
    found = read_run(place)
    if html is not None:
        _write_page(found, place, html)
    if as_json:
        print(json.dumps(found, indent=1))
    elif html is None or sys.stdout.isatty():
        width = min(80, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 80
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print(report_text(found, max(40, width), color, every_suspect=True))


def _write_page(found: dict[str, Any], place: Path, file: Path) -> None:
    from forgather_mem.report_html import CURVES, report_html
    from forgather_mem.run_series import read_curves

    page = report_html(found, read_curves(place, CURVES, found["run"]["rank"]))
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        complain(f"can't write {str(file)!r}: {error.strerror}", "give --html a file in a folder that exists")
        raise typer.Exit(FAILURE) from error
    print(f"forgather-mem: the page is in {file}", file=sys.stderr)
