"""`forgather-mem demo`: watches a small training that leaks, as `forgather-mem run` watches any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from forgather_mem.cli.output import write_page
from forgather_mem.cli.parser import CommandParser, whole_number
from forgather_mem.errors import ForgatherMemError
from forgather_mem.files import write_chosen_file

_FOLDER = Path("out")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--steps", metavar="N", type=whole_number(1), default=150, help="Optimizer steps. Default: %(default)s."
    )


def demo(steps: int) -> int:
    """Train a tiny language model that leaks, and show who holds what grows.

    Its script is out/demo.py, to be read and changed; the page is out/demo.html.
    """
    from forgather_mem.page.data import run_data
    from forgather_mem.reporting.run_dir import find_run, run_report

    try:
        _FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        raise ForgatherMemError(f"demo: there is no place for its files: {error}") from error
    script, page = _FOLDER / "demo.py", _FOLDER / "demo.html"
    write_chosen_file(script, files("forgather_mem.demo").joinpath("train.txt").read_bytes())
    # On a busy two-core machine, two threads were ten times slower than one
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, lambda *_: None)  # of the training, which this waits for
    code = subprocess.call([sys.executable, "-m", "forgather_mem", "run", str(script), str(steps)])
    place = find_run(_FOLDER)
    write_page([run_data(run_report(place), place)], page)
    return code if code >= 0 else 128 - code
