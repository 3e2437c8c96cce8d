"""`forgather-mem report`: shows the report of a run as text, as JSON, as Markdown, or as a page."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

import typer

from forgather_mem.cli.app import FAILURE, complain
from forgather_mem.cli.output import write_page

_FILES_OF_A_RUN = ("report.", "memory.rank", "ring.rank", "events.out.", "events.mem.")
_YIELDING = 10  # the training needs the processor more


def report(
    folder: Path = typer.Argument(
        Path("."),
        metavar="DIR",
        show_default=False,
        help="A run's folder, or a folder above it (then the newest run), or a TensorBoard folder with mem_* tags. "
        "Default: the current folder.",
    ),
    as_json: bool = typer.Option(False, "--json", help="All numbers, as JSON (schema 1)."),
    markdown: bool = typer.Option(
        False, "--markdown", help="As Markdown, for an issue: with versions and settings, without folders."
    ),
    html: Path | None = typer.Option(None, "--html", metavar="FILE", help="Write a page with plots to this file."),
    serve: bool = typer.Option(False, "--serve", help="Serve the page on this machine; it follows running trainings."),
    port: int = typer.Option(
        0, "--port", metavar="N", min=0, max=65535, help="For --serve. Default: any that is free."
    ),
) -> None:
    """Show the report of a run: where memory peaked, what grew, what was collected and cleared."""
    from forgather_mem.reporting.run_dir import find_run, run_report
    from forgather_mem.reporting.text import report_text
    from forgather_mem.telemetry.report_schema import to_dict

    if os.path.isfile(folder) and folder.name.startswith(_FILES_OF_A_RUN):
        folder = folder.parent
    if serve:
        _serve(folder, port)
        return
    place = find_run(folder)
    found = run_report(place)
    for sentence in found.left_out:
        complain(f"left out: {sentence}")
    if html is not None:
        from forgather_mem.page.data import run_data

        write_page([run_data(found, place)], html)
    if as_json:
        print(json.dumps(to_dict(found), indent=1, allow_nan=False))
    elif markdown:
        from forgather_mem.reporting.markdown import report_markdown

        print(report_markdown(found))
    elif html is None or sys.stdout.isatty():
        width = min(80, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 80
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print(report_text(found, max(40, width), color, every_suspect=True))


def _serve(folder: Path, port: int) -> None:
    """Serve the runs of a folder until Ctrl-C."""
    from forgather_mem.page.server import PageServer

    try:
        server = PageServer(folder, port)
    except OSError as error:
        complain(f"can't serve on port {port}: {error.strerror}", "leave --port out for any that is free")
        raise typer.Exit(FAILURE) from error
    os.nice(_YIELDING)
    print(f"forgather-mem: {server.address}\nWho has this address can read these runs. Ctrl-C ends it.", flush=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
