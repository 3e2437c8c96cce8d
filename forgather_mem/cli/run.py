"""The options of `forgather-mem run`. `launch` runs the command; there a process that ends at once reads them."""

from __future__ import annotations

import argparse
import os

from forgather_mem.cli.options import add_allow, add_settings
from forgather_mem.cli.parser import CommandParser, size_bytes, whole_number


def add_arguments(parser: CommandParser) -> None:
    add = parser.add_argument
    add("--template", metavar="NAME", type=_template, help="The callbacks that watch. Default: callbacks/watch.yaml.")
    add_settings(parser)
    add_allow(parser)
    add("--report", metavar="OUT.json", type=_json_file, help="Write the report to this file, too.")
    add(
        "--fail-on", metavar="leak", choices=["leak"],
        help="Exit with 3 when the report finds a leak, with 4 when it can't tell.",
    )  # fmt: skip
    add("--plan", action="store_true", help="Plan the Trainer's memory before it trains; the report compares.")
    add(
        "--baseline", metavar="FILE.json", type=_json_file,
        help="Exit with 3 when memory has grown since that file was written.",
    )  # fmt: skip
    add("--update-baseline", action="store_true", help="Write what this run takes to the file of --baseline.")
    add(
        "--max-peak", dest="max_peaks", metavar="host=SIZE|gpu0=SIZE", type=_max_peak, action="append", default=[],
        help="Exit with 3 when the peak was higher. Repeatable.",
    )  # fmt: skip
    add(
        "--advice-s", metavar="N", type=whole_number(0), default=60,
        help="When memory runs out, plan for so many seconds what would have fitted, on a busy machine for up to "
        "twice as long; 0 for nothing. Default: %(default)s.",
    )  # fmt: skip
    parser.add_command("A script, -m module, torchrun, ..., with its own options.")


def run(**asked: object) -> int:
    """Watch any training command, unchanged, and report where the memory went.

    Its exit code, signals and output stay its own. The report goes to stderr.

    FORGATHER_MEM=0 switches the watching off; files go below FORGATHER_MEM_DIR.
    """
    raise AssertionError("__main__ runs this command, before it imports any other")


def _template(word: str) -> str:
    # The command may change its working directory before it trains
    return os.path.abspath(word) if os.path.isfile(word) else word


def _json_file(word: str) -> str:
    if not word.endswith(".json") or not os.path.isdir(os.path.dirname(word) or "."):
        raise argparse.ArgumentTypeError(f"{word!r}: give a file that ends in .json, in a folder that exists")
    return os.path.abspath(word)


def _max_peak(word: str) -> tuple[str, str]:
    where, equals, size = word.partition("=")
    if not equals or not (where == "host" or (where.startswith("gpu") and where[3:].isdigit())):
        size = size or (word if word[:1].isdigit() else "40GiB")
        raise argparse.ArgumentTypeError(f"{word!r}: write host={size} or gpu0={size}")
    size_bytes(size)
    return where, size
