"""Output of the commands: pages in files, and text.

Printed text is never interpreted as markup, and all that is printed goes through `errors.shown`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forgather_mem.errors import ForgatherMemError, escape_controls, shown
from forgather_mem.files import write_chosen_file

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import RunReport


def write_page(runs: Sequence[dict[str, object]], file: Path) -> None:
    """Write a page of these runs, see `page.html`, and say where it is. Only a page is written over."""
    from forgather_mem.page.html import BEGIN, page_html

    try:
        if file.is_file():
            with file.open("rb") as there:
                if there.read(len(BEGIN)) not in (b"", BEGIN.encode()):
                    hint = "give --html another file, or delete this one"
                    raise ForgatherMemError(f"{str(file)!r} is there, and is no page that was written here\n  {hint}")
        write_chosen_file(file, page_html(runs).encode())
    except OSError as error:
        hint = "give --html a file in a folder that exists"
        raise ForgatherMemError(f"can't write {str(file)!r}: {error.strerror}\n  {hint}") from error
    print(f"forgather-mem: the page is in {file}", file=sys.stderr)


def terminal_width() -> int:
    """The columns of the terminal, 80 without one, and 40 at least."""
    return max(40, shutil.get_terminal_size().columns if sys.stdout.isatty() else 80)


def print_text(text: str) -> None:
    """Print a text as it may leave."""
    print(shown(text))


def json_text(value: object, indent: int | None = None) -> str:
    """JSON in which no character stands that a terminal or a runner obeys."""
    return json.dumps(value, indent=indent, allow_nan=False).replace("\x7f", "\\u007f").replace("##", "#\\u0023")


def print_report(report: RunReport, width: int) -> None:
    """Print a report, on a terminal with its sections highlighted."""
    from forgather_mem.reporting.text import report_text

    print(report_text(report, width, sys.stdout.isatty() and not os.environ.get("NO_COLOR")))


def print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns."""
    rows = [tuple(map(escape_controls, row)) for row in rows]
    # One long cell would make every line as long
    widths = [min(max(map(len, column)), 120) for column in zip(*rows, strict=True)][:-1]
    for *first, last in rows:
        print_text("  ".join([*map(str.ljust, first, widths), last]).rstrip())
