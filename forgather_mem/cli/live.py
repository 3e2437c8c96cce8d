"""`forgather-mem live`: a running training in the terminal, and its report when it is over."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from forgather_mem.cli.options import add_folder
from forgather_mem.cli.output import print_report, print_text, terminal_width
from forgather_mem.cli.parser import CommandParser

_EVERY_S = 0.5


def add_arguments(parser: CommandParser) -> None:
    add_folder(parser, "A run's folder, or a folder above it (then the newest run).")
    parser.add_argument("--once", action="store_true", help="Print how it is now, and end; as into a pipe or a file.")


def live(folder: Path, once: bool) -> None:
    """Follow a running training: step, phase, memory and warnings; its report when it is over."""
    from forgather_mem.reporting.run_dir import find_run, run_report

    place = find_run(folder)
    if now := _now(place):
        if once or not sys.stdout.isatty():
            print_text(now)
            return
        _follow(place)
    print_report(run_report(place), terminal_width())


def _follow(place: Path) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, transient=True) as view:
        while text := _now(place):
            view.update(Text(text, no_wrap=True), refresh=True)
            time.sleep(_EVERY_S)


def _now(place: Path) -> str:
    """How it is now; nothing when it is over."""
    from forgather_mem.reporting.live import live_text, running

    rings = running(place)
    return live_text(rings, time.time(), terminal_width()) if rings else ""
