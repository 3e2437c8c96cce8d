"""`forgather-mem report`: shows the report of a run as text, as JSON, as Markdown, or as a page."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from forgather_mem.cli.app import complain
from forgather_mem.cli.options import add_folder
from forgather_mem.cli.output import json_text, print_report, print_text, terminal_width, write_page
from forgather_mem.cli.parser import CommandParser, whole_number
from forgather_mem.errors import ForgatherMemError, UsageError

_YIELDING = 10  # the training needs the processor more


def add_arguments(parser: CommandParser) -> None:
    what = "A run's folder, or a folder above it (then the newest run), a TensorBoard folder with mem_* tags, or "
    add_folder(parser, f"{what}a report's JSON.")
    shown_as = parser.add_mutually_exclusive_group()
    shown_as.add_argument("--json", dest="as_json", action="store_true", help="All numbers, as JSON (schema 1).")
    of_markdown = "As Markdown, for an issue: with versions and settings, without folders."
    shown_as.add_argument("--markdown", action="store_true", help=of_markdown)
    parser.add_argument("--html", metavar="FILE", type=Path, help="Write a page with plots to this file.")
    shown_as.add_argument(
        "--serve", action="store_true", help="Serve the page on this machine; it follows running trainings."
    )
    parser.add_argument(
        "--port", metavar="N", type=whole_number(0, 65535), default=0, help="For --serve. Default: any that is free."
    )


def report(folder: Path, as_json: bool, markdown: bool, html: Path | None, serve: bool, port: int) -> None:
    """Show the report of a run: where memory peaked, what grew, what was collected and cleared."""
    from forgather_mem.reporting.run_dir import report_at
    from forgather_mem.telemetry.report_schema import to_dict

    if serve and html is not None:
        raise UsageError("--serve shows the page and --html writes it to a file; give one of them")
    if port and not serve:
        raise UsageError("--port is of --serve; give both")
    if serve:
        _serve(folder, port)
        return
    found, place = report_at(folder)
    for sentence in found.left_out:
        complain(f"left out: {sentence}")
    if html is not None:
        from forgather_mem.page.data import run_data

        write_page([run_data(found, place)], html)
    if as_json:
        print(json_text(to_dict(found), indent=1))
    elif markdown:
        from forgather_mem.reporting.markdown import report_markdown

        print_text(report_markdown(found))
    elif html is None or sys.stdout.isatty():
        print_report(found, min(80, terminal_width()))


def _serve(folder: Path, port: int) -> None:
    """Serve the runs of a folder until Ctrl-C."""
    from forgather_mem.page.server import PageServer

    try:
        server = PageServer(folder, port)
    except OSError as error:
        hint = "leave --port out for any that is free"
        raise ForgatherMemError(f"can't serve on port {port}: {error.strerror}\n  {hint}") from error
    os.nice(_YIELDING)
    print(f"forgather-mem: {server.address}\nAnyone with this address can read these runs. Ctrl-C ends it.", flush=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
