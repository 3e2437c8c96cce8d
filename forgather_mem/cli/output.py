"""How does a template command print: highlighted on a terminal, plain into a pipe or a file?

Nothing here takes markup from what it prints, and no control character of a template reaches a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from forgather_mem.errors import escape_controls


def is_terminal() -> bool:
    """Whether standard output is somebody's screen."""
    return sys.stdout.isatty()


def print_yaml(text: str) -> None:
    """Print YAML as it is; on a terminal in colours."""
    shown = escape_controls(text, keep="\n")
    if not is_terminal():
        sys.stdout.write(shown if shown.endswith("\n") or not shown else shown + "\n")
        return
    from rich.console import Console
    from rich.syntax import Syntax

    code = Syntax("", "yaml", theme="ansi_dark", background_color="default").highlight(shown)
    code.rstrip()
    Console().print(code, soft_wrap=True)


def print_rows(rows: Sequence[tuple[str, ...]], styles: Sequence[str] = ()) -> None:
    """Print rows in columns; on a terminal each column in its style. The last column is not padded."""
    if not rows:
        return
    rows = [tuple(escape_controls(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if not is_terminal():
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            print("  ".join(cells).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for row in rows:
        line = Text()
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            line.append(cell.ljust(width) + "  " if i + 1 < len(row) else cell, styles[i] if i < len(styles) else "")
        console.print(line, soft_wrap=True)


def shortened(names: Sequence[str], limit: int = 8) -> str:
    """Names for a sentence: the first ones, and how many more there are.

    >>> shortened(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more:,} more" if more > 0 else "")
