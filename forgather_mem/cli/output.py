"""Output of the commands: pages in files, and text that is highlighted on a terminal, plain into a pipe or a file.

Printed text is never interpreted as markup, and all that is printed goes through `errors.shown`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from forgather_mem.errors import ForgatherMemError, escape_controls, shown
from forgather_mem.files import write_chosen_file

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import RunReport


@dataclass(frozen=True, slots=True)
class TableLimits:
    """What a terminal is given of a table.

    Attributes:
        least_text_width: Of a column that is wrapped; a narrower one is left to the terminal.
        most_width: Of a column; one long cell would make every line as long.
    """

    least_text_width: int = 24
    most_width: int = 120


_TABLE = TableLimits()
_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m"}


def write_page(runs: Sequence[dict[str, object]], file: Path) -> None:
    """Write a page of these runs, see `page.html`, and say where it is."""
    from forgather_mem.page.html import page_html

    try:
        write_chosen_file(file, page_html(runs).encode())
    except OSError as error:
        hint = "give --html a file in a folder that exists"
        raise ForgatherMemError(f"can't write {str(file)!r}: {error.strerror}\n  {hint}") from error
    print(f"forgather-mem: the page is in {file}", file=sys.stderr)


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def terminal_width() -> int:
    """The columns of the terminal, 80 without one, and 40 at least."""
    return max(40, shutil.get_terminal_size().columns if is_terminal() else 80)


def print_text(text: str) -> None:
    """Print a text as it may leave."""
    print(shown(text))


def json_text(value: object, indent: int | None = None) -> str:
    """JSON in which no character stands that a terminal or a runner obeys."""
    return json.dumps(value, indent=indent, allow_nan=False).replace("\x7f", "\\u007f").replace("##", "#\\u0023")


def print_report(report: RunReport, width: int) -> None:
    """Print a report, on a terminal with its sections highlighted."""
    from forgather_mem.reporting.text import report_text

    print(report_text(report, width, is_terminal() and not os.environ.get("NO_COLOR"), every_suspect=True))


def print_rows(rows: Sequence[tuple[str, ...]], styles: Sequence[str] = (), *, wrap: bool = False) -> None:
    """Print rows in columns; on a terminal each in its style. The last column is not padded.

    Args:
        rows: Their cells.
        styles: Of the columns.
        wrap: On a terminal, the last column is text that stays within its width.
    """
    if not rows:
        return
    rows = [tuple(map(escape_controls, row)) for row in rows]
    *widths, _ = (min(max(map(len, column)), _TABLE.most_width) for column in zip(*rows, strict=True))
    indent = sum(widths) + 2 * len(widths)
    room = terminal_width() - indent if wrap and is_terminal() else 0
    colours = [_STYLES.get(style, "") for style in styles] if is_terminal() and not os.environ.get("NO_COLOR") else []
    for *first, last in rows:
        if room >= _TABLE.least_text_width:
            last = ("\n" + " " * indent).join(textwrap.wrap(last, room))
        cells = [*map(str.ljust, first, widths), last]
        if colours:  # a terminal is no log that a runner reads
            print("  ".join(f"{colour}{cell}\x1b[0m" for colour, cell in zip_longest(colours, cells, fillvalue="")))
        else:
            print_text("  ".join(cells).rstrip())


def first_names(names: Sequence[str], limit: int = 8) -> str:
    """Names for a sentence: the first ones, and the number of the others.

    >>> first_names(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more:,} more" if more > 0 else "")
