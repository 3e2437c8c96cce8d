"""Whether a command that has ended is worth a report: a usage text, a typing error or a `hello` is not.

The parent asks before it imports what writes reports.
"""

from __future__ import annotations

from forgather_mem.cli.command import USAGE
from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from forgather_mem.cli.command import Arguments, Command
    from forgather_mem.launch.waiting import Ended

SHORT_S = 5.0  # a process without torch that has run for less has nothing to tell
_TORCH_BYTES = 100 * 2**20  # a process that has imported torch is larger; a script without it seldom is
USAGE_S = 60.0  # who has run for longer, with his imports, has not just printed how he is used
OF_A_SIGNAL = 128  # above it: what a shell gives for a command that a signal has ended


def asks_for_help(command: Command) -> bool:
    """Whether the command was given `--help`, or `-h` as its last word."""
    words = command.argv[1:]
    return "--help" in words or words[-1:] == ["-h"]


def is_worth_a_report(folder: str | None, arguments: Arguments, command: Command, ended: Ended) -> bool:
    """Whether anything was trained, went wrong in a way that memory may explain, lasted, or was asked for."""
    if arguments.report or arguments.limits:
        return True
    has_told = folder is not None and bool(run_session.registered(folder) or run_session.last_errors(folder))
    if ended.code is None or ended.code > OF_A_SIGNAL or has_told:
        return True
    is_usage = ended.code == USAGE or (ended.code == 0 and asks_for_help(command))
    if is_usage and ended.wall_s < USAGE_S:
        return False
    # Without a folder the process below could note nothing, and its size tells
    used_torch = run_session.noted(folder, run_session.TORCH) if folder else ended.peak_bytes >= _TORCH_BYTES
    return ended.wall_s >= SHORT_S or bool(used_torch)
